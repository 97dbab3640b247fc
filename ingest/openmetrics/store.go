package openmetrics

import (
	"encoding/binary"
	"math"
	"math/bits"
	"slices"

	"gpuledger/gpu"
)

// blockSamples is how many samples share one index entry: reading an hour out of
// a month decodes at most this many samples too many on either side.
const blockSamples = 512

// block is a run of samples that decodes on its own.
type block struct {
	offset   int // of its first byte in series.data
	n        int
	min, max int64 // Unix milliseconds
}

// series holds samples compactly: the change of the time step as a varint, then
// the changed bytes of the value. Scraped data takes 2 to 4 bytes a sample
// instead of 16, so a month of a fleet stays in memory.
type series struct {
	metric string
	labels map[string]string
	text   []byte  // as it was written last, while a file is read
	next   *series // that came after it before, while a file is read
	data   []byte
	blocks []block
	// ordered: every sample is later than the one before it.
	ordered bool

	lastMilli, lastStep int64
	lastBits            uint64
}

func (s *series) min() int64 { return s.blocks[0].min }

func (s *series) max() int64 { return s.blocks[len(s.blocks)-1].max }

func (s *series) append(unixMilli int64, value float64) {
	last := len(s.blocks) - 1
	if last < 0 {
		s.ordered = true
	} else if unixMilli <= s.lastMilli {
		s.ordered = false
	}
	if last < 0 || s.blocks[last].n == blockSamples {
		s.blocks = append(s.blocks, block{offset: len(s.data), min: unixMilli, max: unixMilli})
		s.lastMilli, s.lastStep, s.lastBits = 0, 0, 0
		last++
	}
	b := &s.blocks[last]
	b.n++
	b.min, b.max = min(b.min, unixMilli), max(b.max, unixMilli)

	step := unixMilli - s.lastMilli // overflow wraps here and back in decode
	s.data = binary.AppendVarint(s.data, step-s.lastStep)
	if b.n == 1 {
		step = 0 // the distance from 1970 predicts nothing
	}
	s.lastMilli, s.lastStep = unixMilli, step

	valueBits := math.Float64bits(value)
	s.data = appendXOR(s.data, valueBits^s.lastBits)
	s.lastBits = valueBits
}

// appendXOR writes one byte with the counts of zero bytes below and of bytes
// that matter, then the latter.
func appendXOR(data []byte, x uint64) []byte {
	if x == 0 {
		return append(data, 0)
	}
	low := bits.TrailingZeros64(x) / 8
	n := 8 - low - bits.LeadingZeros64(x)/8
	data = append(data, byte(low<<4|n))
	x >>= 8 * low
	for range n {
		data = append(data, byte(x))
		x >>= 8
	}
	return data
}

// decode appends the samples of b to out.
func (s *series) decode(b block, out []gpu.Sample) []gpu.Sample {
	data := s.data[b.offset:]
	var milli, step int64
	var valueBits uint64
	for i := range b.n {
		change, n := binary.Varint(data)
		data = data[n:]
		step += change
		milli += step
		if i == 0 {
			step = 0
		}
		low, count := data[0]>>4, int(data[0]&15)
		data = data[1:]
		var x uint64
		for k := count - 1; k >= 0; k-- {
			x = x<<8 | uint64(data[k])
		}
		data = data[count:]
		valueBits ^= x << (8 * low)
		out = append(out, gpu.Sample{UnixMilli: milli, Value: math.Float64frombits(valueBits)})
	}
	return out
}

// between returns the samples in [start, end), nil where there are none.
func (s *series) between(start, end int64) []gpu.Sample {
	if start >= end {
		return nil
	}
	size := 0
	for _, b := range s.blocks {
		if b.max >= start && b.min < end {
			size += b.n
		}
	}
	if size == 0 {
		return nil
	}
	out := make([]gpu.Sample, 0, size)
	for _, b := range s.blocks {
		if b.max >= start && b.min < end {
			out = s.decode(b, out)
		}
	}
	from, _ := slices.BinarySearchFunc(out, start, byTime)
	to, _ := slices.BinarySearchFunc(out, end, byTime)
	if from == to {
		return nil
	}
	return slices.Clip(out[from:to])
}

func byTime(s gpu.Sample, t int64) int {
	switch {
	case s.UnixMilli < t:
		return -1
	case s.UnixMilli > t:
		return 1
	}
	return 0
}

// join appends the samples of o, a later file's part of the same series.
func (s *series) join(o *series) {
	s.ordered = s.ordered && o.ordered && s.max() < o.min()
	shift := len(s.data)
	s.data = append(s.data, o.data...)
	for _, b := range o.blocks {
		b.offset += shift
		s.blocks = append(s.blocks, b)
	}
}

// order sorts the samples and leaves one an instant, the first that was read. It
// returns how many it dropped although their value differs.
func (s *series) order() (conflicts int) {
	if s.ordered {
		s.data, s.blocks = slices.Clip(s.data), slices.Clip(s.blocks)
		return 0
	}
	var all []gpu.Sample
	for _, b := range s.blocks {
		all = s.decode(b, all)
	}
	slices.SortStableFunc(all, func(a, b gpu.Sample) int { return byTime(a, b.UnixMilli) })
	s.data, s.blocks = nil, nil
	for i, x := range all {
		if i > 0 && x.UnixMilli == s.lastMilli {
			if math.Float64bits(x.Value) != s.lastBits {
				conflicts++
			}
			continue
		}
		s.append(x.UnixMilli, x.Value)
	}
	return conflicts
}
