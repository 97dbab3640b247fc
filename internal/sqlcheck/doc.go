// Package sqlcheck holds the text of BigQuery's queries against GoogleSQL's own analyzer.
// It is a module of its own: the analyzer takes minutes and several gigabytes to compile.
// Run it by make sqlcheck.
package sqlcheck
