package queue

// entry is an element of a heap. It stores its own index, so that it can be moved and removed.
type entry[T any] interface {
	before(T) bool
	// index points to the element's index in the heap; -1 while it is in none.
	index() *int
}

// heap is a binary heap: its first element is before all others.
type heap[T entry[T]] []T

func (h *heap[T]) push(x T) {
	*x.index() = len(*h)
	*h = append(*h, x)
	h.up(len(*h) - 1)
}

// remove removes x, which must be in the heap.
func (h *heap[T]) remove(x T) {
	at, last := *x.index(), len(*h)-1
	h.swap(at, last)
	var none T
	(*h)[last] = none // do not keep it alive
	*h = (*h)[:last]
	*x.index() = -1
	if at < last {
		h.fix((*h)[at])
	}
}

// fix restores the order after the position of x, which must be in the heap, has changed.
func (h *heap[T]) fix(x T) {
	at := *x.index()
	if !h.down(at) {
		h.up(at)
	}
}

func (h *heap[T]) up(at int) {
	for at > 0 {
		parent := (at - 1) / 2
		if !(*h)[at].before((*h)[parent]) {
			return
		}
		h.swap(at, parent)
		at = parent
	}
}

// down reports whether it moved the element.
func (h *heap[T]) down(at int) bool {
	from := at
	for {
		least := at
		for child := 2*at + 1; child <= 2*at+2 && child < len(*h); child++ {
			if (*h)[child].before((*h)[least]) {
				least = child
			}
		}
		if least == at {
			return at > from
		}
		h.swap(at, least)
		at = least
	}
}

func (h *heap[T]) swap(i, j int) {
	s := *h
	s[i], s[j] = s[j], s[i]
	*s[i].index(), *s[j].index() = i, j
}
