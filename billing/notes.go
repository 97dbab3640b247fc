package billing

// ReadNoter is implemented by readers that learn more from the rows than the
// manifest tells: how many rows were skipped and why, line types unknown to
// them. ReadNotes returns a sentence each for the last complete Read of that
// delivery, in a stable order; none before it.
type ReadNoter interface {
	ReadNotes(d Delivery) []string
}
