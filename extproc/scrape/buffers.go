package scrape

// Bounds of the memory for pages that is kept while no page is read.
const (
	// maxKept is the number of buffers. A page is read and parsed in less than a millisecond, so
	// that even with a thousand endpoints few are read at the same time.
	maxKept = 16
	// maxKeptBytes is the size of a buffer. A metrics page of vLLM has 50 to 80 KB.
	maxKeptBytes = 256 << 10
)

// buffers are the buffers for pages, which the scrapes of all endpoints share. A scrape needs one
// only from the first byte of an answer until the page is parsed, so that slow engines take no
// memory before they answer. If more pages are read at the same time than buffers are kept, further
// ones are allocated. The methods are safe for concurrent use.
type buffers struct {
	free chan []byte // unused buffers, at most maxKept; never closed
}

func newBuffers() *buffers { return &buffers{make(chan []byte, maxKept)} }

// get returns an empty buffer. The caller owns it until it passes it to put.
func (b *buffers) get() []byte {
	select {
	case free := <-b.free:
		return free
	default:
		return nil
	}
}

// put takes back a buffer. Nothing may refer to its memory afterwards. It ignores nil.
func (b *buffers) put(buffer []byte) {
	returned(buffer)
	if cap(buffer) == 0 || cap(buffer) > maxKeptBytes {
		return
	}
	select {
	case b.free <- buffer[:0]:
	default:
	}
}

// returned is called with each buffer that is put back. Tests overwrite its memory.
var returned = func([]byte) {}
