package main

import (
	"fmt"
	"os"

	"gpuledger/billing/ratecard"
	"gpuledger/policy"
	"gpuledger/warehouse"
)

// rateCard reads a card of rates.
func (c *Config) rateCard(b BillConfig, db *warehouse.DB) (*ratecard.Reader, error) {
	name := c.path(b.File)
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, usagef("bills: %s: %w", b.Name, err)
	}
	var card ratecard.Card
	if err := policy.DecodeStrict(name, text, &card); err != nil {
		return nil, &exitError{exitUsage, fmt.Errorf("bills: %s: %w", b.Name, err)}
	}
	r, err := ratecard.New(b.Name, name, card, warehouse.RatedNodes{DB: db})
	if err != nil {
		return nil, &exitError{exitUsage, fmt.Errorf("bills: %s: %w", b.Name, err)}
	}
	return r, nil
}
