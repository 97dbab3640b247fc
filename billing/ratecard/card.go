// Package ratecard makes bill lines of node-hours and prices, for machines of one's own
// and for clouds whose export has no cost by node. Its lines are estimates: no invoice
// stands behind them.
package ratecard

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"
	"time"

	"gpuledger/billing/money"
)

// Card is a file of rates. The first that matches a node's hour prices it; a node that none
// matches has no line.
type Card struct {
	Currency string `yaml:"currency"` // ISO 4217
	Rates    []Rate `yaml:"rates"`
}

// Rate is a price for an hour of some nodes, from an hour on and before another.
type Rate struct {
	Match     Match  `yaml:"match"`
	Per       string `yaml:"per"`       // node (default) or gpu
	Effective string `yaml:"effective"` // price of an hour, decimal
	List      string `yaml:"list"`      // likewise; default: none, so that list cost is unknown
	From      string `yaml:"from"`      // a date or time in UTC, whole hours; default: always
	To        string `yaml:"to"`        // exclusive
}

// Match says which nodes a rate is for: all that it names must agree; * is a wildcard.
type Match struct {
	Cluster      string            `yaml:"cluster"`
	Node         string            `yaml:"node"`
	InstanceType string            `yaml:"instance_type"`
	NodePool     string            `yaml:"node_pool"`
	GPUModel     string            `yaml:"gpu_model"`
	Labels       map[string]string `yaml:"labels"` // of the node, as kube-state-metrics spells them or as Kubernetes does
}

// rate is a Rate that was read.
type rate struct {
	Rate
	effective money.Amount
	list      money.NullAmount
	from, to  time.Time // zero: open
}

var iso4217 = regexp.MustCompile(`^[A-Z]{3}$`)

// compile reads the card's texts.
func (c Card) compile() ([]rate, error) {
	if !iso4217.MatchString(c.Currency) {
		return nil, fmt.Errorf("currency: %q is not a code of ISO 4217, such as USD", c.Currency)
	}
	if len(c.Rates) == 0 {
		return nil, errors.New("rates: there is none")
	}
	var out []rate
	for i, r := range c.Rates {
		one, err := r.compile()
		if err != nil {
			return nil, fmt.Errorf("rates: entry %d: %w", i+1, err)
		}
		out = append(out, one)
	}
	return out, nil
}

func (r Rate) compile() (out rate, err error) {
	out.Rate = r
	if out.Per == "" {
		out.Per = "node"
	}
	if out.Per != "node" && out.Per != "gpu" {
		return out, fmt.Errorf("per: %q is not node or gpu", r.Per)
	}
	if out.effective, err = price(r.Effective); err != nil {
		return out, fmt.Errorf("effective: %w", err)
	}
	if r.List != "" {
		out.list.Valid = true
		if out.list.Amount, err = price(r.List); err != nil {
			return out, fmt.Errorf("list: %w", err)
		}
	}
	if out.from, err = hourOf(r.From); err != nil {
		return out, fmt.Errorf("from: %w", err)
	}
	if out.to, err = hourOf(r.To); err != nil {
		return out, fmt.Errorf("to: %w", err)
	}
	if !out.to.IsZero() && !out.from.Before(out.to) {
		return out, fmt.Errorf("from %s is not before to %s", r.From, r.To)
	}
	for _, p := range []string{r.Match.Cluster, r.Match.Node, r.Match.InstanceType, r.Match.NodePool, r.Match.GPUModel} {
		if _, err := path.Match(p, ""); err != nil {
			return out, fmt.Errorf("match: %q is no pattern", p)
		}
	}
	return out, nil
}

// maxDecimals of a price keep its product with hours, of twelve, exact.
const maxDecimals = money.Scale - money.RatioScale

func price(text string) (money.Amount, error) {
	if text == "" {
		return money.Amount{}, errors.New("no price")
	}
	a, err := money.Parse(text)
	switch {
	case err != nil:
		return a, err
	case a.Sign() < 0:
		return a, fmt.Errorf("%s is below 0", text)
	}
	if _, decimals, ok := strings.Cut(a.String(), "."); ok && len(decimals) > maxDecimals {
		return a, fmt.Errorf("%s has more than %d decimals", text, maxDecimals)
	}
	return a, nil
}

func hourOf(text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{"2006-01-02", time.RFC3339, "2006-01-02T15:04"} {
		if t, err := time.Parse(layout, text); err == nil {
			if t = t.UTC(); !t.Equal(t.Truncate(time.Hour)) {
				return t, fmt.Errorf("%q is not a whole hour of UTC", text)
			}
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a date or a time like 2026-10-05T14:00:00Z", text)
}

// holds reports whether the rate prices a node's hour.
func (r rate) holds(n NodeHour) bool {
	if !r.from.IsZero() && n.Hour.Before(r.from) || !r.to.IsZero() && !n.Hour.Before(r.to) {
		return false
	}
	for _, m := range []struct{ pattern, text string }{
		{r.Match.Cluster, n.Cluster}, {r.Match.Node, n.Node}, {r.Match.InstanceType, n.InstanceType}, {r.Match.NodePool, n.Pool},
	} {
		if m.pattern != "" && !matches(m.pattern, m.text) {
			return false
		}
	}
	if r.Match.GPUModel != "" && !matches(normal(r.Match.GPUModel), normal(n.Model)) {
		return false
	}
	for k, pattern := range r.Match.Labels {
		v, ok := n.Labels[k]
		if !ok {
			v, ok = n.Labels[sanitised(k)]
		}
		if !ok || !matches(pattern, v) {
			return false
		}
	}
	return true
}

func matches(pattern, text string) bool {
	ok, err := path.Match(strings.ToLower(pattern), strings.ToLower(text))
	return err == nil && ok && (text != "" || pattern == "")
}

// normal brings a GPU model to one spelling: NVIDIA H100 80GB HBM3 is H100-80GB-HBM3.
func normal(model string) string {
	s := strings.NewReplacer(" ", "-", "_", "-").Replace(strings.ToUpper(strings.TrimSpace(model)))
	return strings.TrimPrefix(s, "NVIDIA-")
}

var unclean = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// sanitised spells a label as kube-state-metrics does.
func sanitised(label string) string { return unclean.ReplaceAllString(label, "_") }
