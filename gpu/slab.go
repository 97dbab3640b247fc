package gpu

// slab hands out columns from larger pieces: a fold needs very many.
type slab struct {
	t []int64
	v []uint64
}

const slabSize = 1 << 14

func (s *slab) times(n int) []int64 {
	if n > len(s.t) {
		s.t = make([]int64, max(n, slabSize))
	}
	out := s.t[:n:n]
	s.t = s.t[n:]
	return out
}

func (s *slab) values(n int) []uint64 {
	if n > len(s.v) {
		s.v = make([]uint64, max(n, slabSize))
	}
	out := s.v[:n:n]
	s.v = s.v[n:]
	return out
}
