package policy

import (
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"

	"gpuledger/billing/money"
)

// The ways to split a node's price into GPU, CPU and memory (`component_split`).
const (
	GPUAll          = "gpu_all"          // all of it is the GPUs': pods without a GPU pay nothing
	PriceDifference = "price_difference" // CPU and memory at component_prices, the rest of the list price is the GPUs'
	FixedRatio      = "ratio"            // by component_ratios, as OpenCost does
	SCAD            = "scad"             // by the weights of AWS split cost allocation data, unused capacity spread
	BilledSKU       = "billed_sku"       // as the provider bills it: each line is its own component's
)

// ComponentPrice is the list price of a vCPU and of a GiB of memory for an hour,
// from a UTC day on: what CPU-only machines of the same cloud and region cost.
type ComponentPrice struct {
	VCPU     string `json:"vcpu"`
	GiB      string `json:"gib"`
	Currency string `json:"currency,omitempty"` // of the bill; "" where there is only one
	From     Date   `json:"from"`
}

// ComponentPrices is a list in the file, or one mapping where prices never change.
type ComponentPrices []ComponentPrice

// UnmarshalYAML reads one mapping or a list of them, and refuses unknown keys.
func (c *ComponentPrices) UnmarshalYAML(n *yaml.Node) error {
	entries := []*yaml.Node{n}
	if n.Kind == yaml.SequenceNode {
		entries = n.Content
	}
	*c = nil
	for _, e := range entries {
		if e.Kind != yaml.MappingNode {
			return fmt.Errorf(`line %d: expected component_prices: {vcpu: "0.0347", gib: "0.0039"}, or a list of such entries with from: DATE`, e.Line)
		}
		var p ComponentPrice
		for i := 0; i+1 < len(e.Content); i += 2 {
			key, value := e.Content[i], e.Content[i+1]
			switch key.Value {
			case "vcpu":
				p.VCPU = value.Value
			case "gib":
				p.GiB = value.Value
			case "currency":
				p.Currency = value.Value
			case "from":
				if err := p.From.UnmarshalYAML(value); err != nil {
					return err
				}
			default:
				return fmt.Errorf("line %d: unknown key %q", key.Line, key.Value)
			}
		}
		*c = append(*c, p)
	}
	return nil
}

// ComponentRatios are the base prices that `ratio` scales to the node's price. Only
// the ratio between them matters.
type ComponentRatios struct {
	GPU  string `yaml:"gpu" json:"gpu"`
	VCPU string `yaml:"vcpu" json:"vcpu"`
	GiB  string `yaml:"gib" json:"gib"`
}

// defaultRatios are OpenCost's (configs/default.json, us-central1).
var defaultRatios = ComponentRatios{GPU: "0.95", VCPU: "0.031611", GiB: "0.004237"}

// normaliseComponents writes out the ratios where they decide anything.
func (p *Policy) normaliseComponents() {
	if p.ComponentSplit == FixedRatio && p.ComponentRatios == nil {
		p.ComponentRatios = &ComponentRatios{}
	}
	if r := p.ComponentRatios; r != nil {
		for _, f := range []struct {
			field *string
			value string
		}{{&r.GPU, defaultRatios.GPU}, {&r.VCPU, defaultRatios.VCPU}, {&r.GiB, defaultRatios.GiB}} {
			if *f.field == "" {
				*f.field = f.value
			}
		}
	}
}

func (p *Policy) validateComponents() error {
	for _, c := range p.ComponentPrices {
		for _, f := range []struct{ key, value string }{{"vcpu", c.VCPU}, {"gib", c.GiB}} {
			if err := checkNano("component_prices."+f.key, f.value, false); err != nil {
				return err
			}
		}
	}
	if p.ComponentSplit == PriceDifference && len(p.ComponentPrices) == 0 {
		return fmt.Errorf(`component_split: price_difference needs the list price of a vCPU-hour and a GiB-hour; add component_prices: {vcpu: "0.0347", gib: "0.0039"}`)
	}
	if r := p.ComponentRatios; r != nil {
		for _, f := range []struct{ key, value string }{{"gpu", r.GPU}, {"vcpu", r.VCPU}, {"gib", r.GiB}} {
			if err := checkNano("component_ratios."+f.key, f.value, true); err != nil {
				return err
			}
		}
	}
	return nil
}

const nanoDecimals = 9

// checkNano accepts decimal numbers that nano reads exactly.
func checkNano(key, text string, above0 bool) error {
	a, err := money.Parse(text)
	switch {
	case text == "" || err != nil:
		return fmt.Errorf("%s: %q is not a price such as 0.0347", key, text)
	case a.Sign() < 0 || above0 && a.Sign() == 0:
		return fmt.Errorf("%s: %s is not above 0", key, text)
	case a.Cmp(money.MustParse("1000000")) > 0 || len(fraction(a.String())) > nanoDecimals:
		return fmt.Errorf("%s: %s has more than %d decimals or is above 1,000,000", key, text, nanoDecimals)
	}
	return nil
}

// nano reads a validated decimal in billionths.
func nano(text string) uint64 {
	a, err := money.Parse(text)
	if err != nil {
		return 0 // validated
	}
	n := a.Big()
	return n.Quo(n, nanoUnit).Uint64()
}

var nanoUnit = money.MustParse("0.000000001").Big()

// Nano is a base price or weight of each component, in billionths: of one GPU, one
// vCPU and one GiB.
type Nano struct{ GPU, VCPU, GiB uint64 }

// PricesAt returns the price of a vCPU-hour and a GiB-hour in a currency at an
// instant: the entry with the latest start not after it. GPU is 0.
func (p *Policy) PricesAt(currency string, at time.Time) (Nano, bool) {
	var best *ComponentPrice
	for i := range p.ComponentPrices {
		c := &p.ComponentPrices[i]
		if (c.Currency == "" || c.Currency == currency) && !c.From.After(at) && (best == nil || c.From.After(best.From.Time)) {
			best = c
		}
	}
	if best == nil {
		return Nano{}, false
	}
	return Nano{VCPU: nano(best.VCPU), GiB: nano(best.GiB)}, true
}

// Ratios returns component_ratios.
func (p *Policy) Ratios() Nano {
	r := defaultRatios
	if p.ComponentRatios != nil {
		r = *p.ComponentRatios
	}
	return Nano{GPU: nano(r.GPU), VCPU: nano(r.VCPU), GiB: nano(r.GiB)}
}
