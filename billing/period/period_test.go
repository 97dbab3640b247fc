package period

import (
	"testing"
	"time"
)

func TestMonth(t *testing.T) {
	m, err := ParseMonth("2026-12")
	if err != nil {
		t.Fatal(err)
	}
	if m.Next().String() != "2027-01" || m.Span().Duration() != 31*24*time.Hour || m != MonthOf(time.Date(2026, 12, 31, 23, 59, 59, 0, time.UTC)) {
		t.Errorf("%s %s", m.Next(), m.Span())
	}
	// 23:30 on 31 January in New York is February in UTC.
	ny := time.FixedZone("EST", -5*3600)
	if got := MonthOf(time.Date(2026, 1, 31, 23, 30, 0, 0, ny)); got.String() != "2026-02" {
		t.Error(got)
	}
	for _, bad := range []string{"", "2026", "2026-13", "10-2026", "2026-1", "2026-10-01"} {
		if _, err := ParseMonth(bad); err == nil {
			t.Errorf("%q is a month", bad)
		}
	}
}

func TestSpan(t *testing.T) {
	at := func(h, m int) time.Time { return time.Date(2026, 10, 5, h, m, 0, 0, time.UTC) }
	s := Span{at(10, 20), at(12, 10)}
	if hours := s.Hours(); len(hours) != 3 || !hours[0].Equal(at(10, 0)) || !hours[2].Equal(at(12, 0)) {
		t.Errorf("%v", hours)
	}
	if got := s.Intersect(Hour(at(10, 59))); got.Duration() != 40*time.Minute {
		t.Error(got)
	}
	if got := s.Intersect(Hour(at(13, 0))); !got.Empty() || got.Duration() != 0 || got.Micros() != 0 {
		t.Error(got)
	}
	if !s.Contains(at(10, 20)) || s.Contains(at(12, 10)) {
		t.Error("start is inclusive, end exclusive")
	}
	if len((Span{at(11, 0), at(12, 0)}).Hours()) != 1 || (Span{}).Hours() != nil {
		t.Error("an hour is one hour")
	}
	if g := Hour(at(10, 30)).Grow(15 * time.Minute); !g.Start.Equal(at(9, 45)) || !g.End.Equal(at(11, 15)) {
		t.Error(g)
	}
	if !Day(at(23, 59)).Equal(at(0, 0)) {
		t.Error("day")
	}
}
