package estimate

// fifo is a first-in, first-out queue in a ring buffer that grows on demand. The zero fifo is
// empty.
type fifo struct {
	ring  []waiting // its length is a power of two
	from  int
	count int
}

func (f *fifo) len() int { return f.count }

func (f *fifo) first() *waiting { return &f.ring[f.from] }

func (f *fifo) push(w waiting) {
	if f.count == len(f.ring) {
		larger := make([]waiting, max(16, 2*len(f.ring)))
		n := copy(larger, f.ring[f.from:])
		copy(larger[n:], f.ring[:f.from])
		f.ring, f.from = larger, 0
	}
	f.ring[(f.from+f.count)&(len(f.ring)-1)] = w
	f.count++
}

func (f *fifo) pop() waiting {
	w := f.ring[f.from]
	f.from = (f.from + 1) & (len(f.ring) - 1)
	f.count--
	return w
}
