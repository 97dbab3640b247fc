// Package policy holds the two documents that decide who pays: policy.yaml (how a
// node's line is split) and owners.yaml (whose a pod is). It parses them strictly,
// writes every default out, and gives them a canonical form and hash.
package policy

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"gpuledger/billing/money"
)

// Policy is policy.yaml. Default returns the values used where the file is silent.
type Policy struct {
	Basis          string           `yaml:"basis" json:"basis"`             // max (default) | used | request
	Reservation    Reservation      `yaml:"reservation" json:"reservation"` // what a time-slicing replica reserves
	Partition      Partition        `yaml:"partition" json:"partition"`     // how MIG instances weigh
	Unattributed   UnattributedRule `yaml:"unattributed" json:"unattributed"`
	ComponentSplit string           `yaml:"component_split" json:"component_split"` // gpu_all (default) | price_difference | ratio | scad | billed_sku
	DriverReserved string           `yaml:"driver_reserved" json:"driver_reserved"` // exclude (default) | own_line: reserved ÷ total of each GPU, off the top
	HeadlineCost   string           `yaml:"headline_cost" json:"headline_cost"`     // effective (default) | billed | list | contracted
	Idle           Idle             `yaml:"idle" json:"idle"`
	RemainderOwner []RemainderOwner `yaml:"remainder_owner" json:"remainder_owner"`
	CreditsSpread  string           `yaml:"credits_spread" json:"credits_spread"` // none (default) | by_base: account-wide lines come in by what of their base is in scope
	Adjustment     Adjustment       `yaml:"adjustment" json:"adjustment"`
	ModelWeights   []ModelWeight    `yaml:"model_weights" json:"model_weights"`
	Gates          Gates            `yaml:"gates" json:"gates"`

	// Absent from the canonical form where they decide nothing, so that a policy
	// that does without them keeps its hash.
	ComponentPrices ComponentPrices  `yaml:"component_prices" json:"component_prices,omitempty"`
	ComponentRatios *ComponentRatios `yaml:"component_ratios" json:"component_ratios,omitempty"`
}

// ByBase is the value of credits_spread that brings the part of account-wide lines in
// that usage in scope answers for.
const ByBase = "by_base"

// Reservation says what a holder reserves where hardware does not.
type Reservation struct {
	TimeSlicing string `yaml:"time_slicing" json:"time_slicing"` // none (default) | replica: usable memory / R for each replica
}

// Partition says how a MIG instance weighs within its GPU.
type Partition struct {
	Weight     string `yaml:"weight" json:"weight"`         // memory (default) | compute slices | dominant: the larger share of the two
	Normaliser string `yaml:"normaliser" json:"normaliser"` // configured (default): the geometry's own slices | physical: all of the GPU's
}

// UnattributedRule says who pays for bytes that no pod answers for.
type UnattributedRule struct {
	Mode      string `yaml:"mode" json:"mode"` // own_line (default) | spread, by bytes used
	Tolerance string `yaml:"tolerance" json:"tolerance"`
}

// Adjustment says how late changes of a closed month are posted.
type Adjustment struct {
	Style       string `yaml:"style" json:"style"` // delta (default) | ledger
	Materiality string `yaml:"materiality" json:"materiality"`
}

// Gates are the limits that stop closing a month.
type Gates struct {
	MaxNoTelemetry string `yaml:"max_no_telemetry" json:"max_no_telemetry"`
	MaxEstimated   string `yaml:"max_estimated" json:"max_estimated"`
	MaxUnowned     string `yaml:"max_unowned" json:"max_unowned"`
	MaxUnmatched   string `yaml:"max_unmatched" json:"max_unmatched,omitempty"`     // of machines that no cluster shows; empty: 2%
	MaxProvisional string `yaml:"max_provisional" json:"max_provisional,omitempty"` // of lines without an invoice yet; empty: 0%
}

// Unmatched is max_unmatched, or its default.
func (g Gates) Unmatched() string { return orElse(g.MaxUnmatched, "2%") }

// Provisional is max_provisional, or its default.
func (g Gates) Provisional() string { return orElse(g.MaxProvisional, "0%") }

func orElse(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// ModelWeight is the price weight of one device-hour of a GPU model, from a UTC
// day on. Only the ratio between weights matters.
type ModelWeight struct {
	Model  string `yaml:"model" json:"model"`
	Weight string `yaml:"weight" json:"weight"`
	From   Date   `yaml:"from" json:"from"`
}

// RemainderOwner names who pays a remainder; the first match wins.
type RemainderOwner struct {
	Match      RemainderMatch `yaml:"match" json:"match"`
	Team       string         `yaml:"team" json:"team"`
	CostCenter string         `yaml:"cost_center" json:"cost_center"`
}

// RemainderMatch selects remainders; empty fields match everything, * is a wildcard.
type RemainderMatch struct {
	Category string `yaml:"category" json:"category"`
	NodePool string `yaml:"node_pool" json:"node_pool"`
	Account  string `yaml:"account" json:"account"`
}

// Date is a calendar date, or zero.
type Date struct{ time.Time }

// UnmarshalYAML reads 2026-01-31.
func (d *Date) UnmarshalYAML(n *yaml.Node) error {
	t, err := time.Parse("2006-01-02", n.Value)
	if err != nil {
		return fmt.Errorf("line %d: %q is not a date like 2026-01-31", n.Line, n.Value)
	}
	d.Time = t
	return nil
}

// MarshalJSON writes the date, or an empty string.
func (d Date) MarshalJSON() ([]byte, error) {
	if d.IsZero() {
		return []byte(`""`), nil
	}
	return json.Marshal(d.Format("2006-01-02"))
}

// UnmarshalJSON is the inverse of MarshalJSON.
func (d *Date) UnmarshalJSON(b []byte) error {
	var s string
	if err := json.Unmarshal(b, &s); err != nil || s == "" {
		return err
	}
	t, err := time.Parse("2006-01-02", s)
	d.Time = t
	return err
}

// Default returns the policy of DESIGN §9 with every default written out.
func Default() Policy {
	return Policy{
		Basis:          "max",
		Reservation:    Reservation{TimeSlicing: "none"},
		Partition:      Partition{Weight: "memory", Normaliser: "configured"},
		Unattributed:   UnattributedRule{Mode: "own_line", Tolerance: "2%"},
		ComponentSplit: GPUAll,
		DriverReserved: "exclude",
		HeadlineCost:   "effective",
		Idle:           Idle{Default: Rule{Policy: Keep}, SlotHeld: &Rule{Policy: Proportional, Scope: ScopeDevice}},
		CreditsSpread:  "none",
		Adjustment:     Adjustment{Style: "delta", Materiality: "0.00"},
		Gates:          Gates{MaxNoTelemetry: "2%", MaxEstimated: "10%", MaxUnowned: "0%"},
	}
}

// Parse reads policy.yaml over the defaults. name is used in errors only. An
// unknown key or value is an error with its line.
func Parse(name string, text []byte) (Policy, error) {
	p := Default()
	if err := DecodeStrict(name, text, &p); err != nil {
		return Policy{}, err
	}
	p.normaliseComponents()
	if err := p.validate(); err != nil {
		return Policy{}, fmt.Errorf("%s: %w", name, err)
	}
	p.Idle.normalise()
	if len(p.RemainderOwner) == 0 {
		p.RemainderOwner = []RemainderOwner{{Team: "platform"}}
	}
	return p, nil
}

var unknownField = regexp.MustCompile(`line (\d+): field (\S+) not found in type .*`)

var wrongKind = regexp.MustCompile("cannot unmarshal !!(\\w+)(?: `([^`]*)`)? into (\\S+)")

// sayKind says in words what kind of value was expected and what was there.
func sayKind(msg string) string {
	m := wrongKind.FindStringSubmatch(msg)
	kinds := map[string]string{"bool": "true or false", "string": "a text", "int": "a whole number", "map": "keys and values", "seq": "a list"}
	found, want := kinds[m[1]], kinds[m[3]]
	if m[2] != "" {
		found = fmt.Sprintf("%q", m[2])
	}
	if found == "" {
		found = m[1]
	}
	switch {
	case want != "":
	case strings.HasPrefix(m[3], "[]"):
		want = "a list"
	default:
		want = "keys and values"
	}
	return "expected " + want + ", found " + found
}

// DecodeStrict decodes YAML into out, refusing unknown keys with file and line.
// An empty document leaves out as it is.
func DecodeStrict(name string, text []byte, out any) error {
	dec := yaml.NewDecoder(bytes.NewReader(text))
	dec.KnownFields(true)
	err := dec.Decode(out)
	if errors.Is(err, io.EOF) {
		return nil
	}
	if err != nil {
		msg := strings.TrimPrefix(err.Error(), "yaml: ")
		msg = strings.TrimSpace(strings.TrimPrefix(msg, "unmarshal errors:"))
		msg = unknownField.ReplaceAllString(msg, `line $1: unknown key "$2"`)
		msg = wrongKind.ReplaceAllStringFunc(msg, sayKind)
		return fmt.Errorf("%s: %s", name, msg)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return fmt.Errorf("%s: more than one YAML document", name)
	}
	return nil
}

// choice is one key with the values it takes, and those that are part of the
// design but that this version does not compute.
type choice struct {
	key, value string
	known      []string
	later      []string
}

func (p *Policy) validate() error {
	for _, c := range []choice{
		{"basis", p.Basis, []string{"max", "used", "request"}, nil},
		{"reservation.time_slicing", p.Reservation.TimeSlicing, []string{"none", "replica"}, nil},
		{"partition.weight", p.Partition.Weight, []string{"memory", "compute", "dominant"}, nil},
		{"partition.normaliser", p.Partition.Normaliser, []string{"configured", "physical"}, nil},
		{"unattributed.mode", p.Unattributed.Mode, []string{"own_line", "spread"}, nil},
		{"unattributed.tolerance", p.Unattributed.Tolerance, []string{"2%"}, nil},
		{"component_split", p.ComponentSplit, []string{GPUAll, PriceDifference, FixedRatio, SCAD, BilledSKU}, nil},
		{"driver_reserved", p.DriverReserved, []string{"exclude", "own_line"}, nil},
		{"headline_cost", p.HeadlineCost, []string{"effective"}, []string{"billed", "list", "contracted"}},
		{"credits_spread", p.CreditsSpread, []string{"none", ByBase}, nil},
		{"adjustment.style", p.Adjustment.Style, []string{"delta", "ledger"}, nil},
	} {
		if slices.Contains(c.later, c.value) {
			return fmt.Errorf("%s: %s is not available in this version; use %s", c.key, c.value, strings.Join(c.known, " or "))
		}
		if !slices.Contains(c.known, c.value) {
			return fmt.Errorf("%s: %q is not one of %s", c.key, c.value, strings.Join(c.known, ", "))
		}
	}
	for _, w := range p.ModelWeights {
		a, err := money.Parse(w.Weight)
		if err != nil || a.Sign() <= 0 || w.Model == "" {
			return fmt.Errorf("model_weights: %q needs a model and a weight above 0, not %q", w.Model, w.Weight)
		}
		if a.Cmp(money.MustParse("1000000")) > 0 || len(fraction(a.String())) > 6 {
			return fmt.Errorf("model_weights: %s: weight %s has more than 6 decimals or is above 1,000,000", w.Model, w.Weight)
		}
	}
	if err := p.validatePayers(); err != nil {
		return err
	}
	for _, g := range []struct{ key, value string }{{"gates.max_no_telemetry", p.Gates.MaxNoTelemetry}, {"gates.max_estimated", p.Gates.MaxEstimated}, {"gates.max_unowned", p.Gates.MaxUnowned}, {"gates.max_unmatched", p.Gates.Unmatched()}, {"gates.max_provisional", p.Gates.Provisional()}} {
		limit, err := ParsePercent(g.value)
		if err != nil {
			return fmt.Errorf("%s: %w", g.key, err)
		}
		if limit.Sign() < 0 {
			return fmt.Errorf("%s: %s is below 0", g.key, g.value)
		}
	}
	if _, err := money.Parse(p.Adjustment.Materiality); err != nil {
		return fmt.Errorf("adjustment.materiality: %w", err)
	}
	if err := p.validateComponents(); err != nil {
		return err
	}
	return p.Idle.validate()
}

// Categories are the remainder categories that remainder_owner can match.
var Categories = []string{
	"unallocated", "slot_held", "claim_idle", "unattributed", "driver_reserved", "mig_unpartitioned", "not_ready", "no_telemetry",
	"commitment_unused", "capacity_unused", "discount", "credit", "refund", "tax", "fee", "other",
}

// validatePayers makes sure that every remainder has a payer.
func (p *Policy) validatePayers() error {
	for i, r := range p.RemainderOwner {
		if r.Team == "" {
			return fmt.Errorf("remainder_owner: entry %d has no team", i+1)
		}
		if c := r.Match.Category; c != "" && !slices.ContainsFunc(Categories, func(known string) bool { return Glob(c, known) }) {
			return fmt.Errorf("remainder_owner: entry %d: category %q is none of %s", i+1, c, strings.Join(Categories, ", "))
		}
	}
	if n := len(p.RemainderOwner); n > 0 && p.RemainderOwner[n-1].Match != (RemainderMatch{}) {
		return errors.New("remainder_owner: the last entry must have no match, so that every remainder has a payer")
	}
	return nil
}

func fraction(s string) string { _, f, _ := strings.Cut(s, "."); return f }

// ParsePercent reads "2%" as the amount 0.02.
func ParsePercent(s string) (money.Amount, error) {
	n, ok := strings.CutSuffix(s, "%")
	if !ok {
		return money.Amount{}, fmt.Errorf("%q is not a percentage like 2%%", s)
	}
	a, err := money.Parse(n + "e-2")
	if err != nil {
		return money.Amount{}, fmt.Errorf("%q is not a percentage like 2%%", s)
	}
	return a, nil
}

// Canonical renders a document with every default written out, in one spelling,
// so that equal meaning has equal bytes.
func (p Policy) Canonical() []byte {
	b, err := json.Marshal(p)
	if err != nil {
		panic(err) // strings, slices and dates always marshal
	}
	return b
}

// Hash is the SHA-256 of the canonical form.
func (p Policy) Hash() [32]byte { return sha256.Sum256(p.Canonical()) }

// FromCanonical is the inverse of Canonical.
func FromCanonical(b []byte) (Policy, error) {
	var p Policy
	err := json.Unmarshal(b, &p)
	return p, err
}
