package stream

// roomBytes is the part of its stack that a decision needs.
const roomBytes = 10 << 10

// growStack grows the stack of a new goroutine to the size that a decision needs, while there is
// little to copy. Otherwise the stack grows several times, each time with more to copy, which takes
// a tenth of the CPU time of a short request. Go shrinks the stack again if the request waits.
//
//go:noinline
func growStack() byte {
	var room [roomBytes]byte
	return last(&room)
}

//go:noinline
func last(room *[roomBytes]byte) byte { return room[roomBytes-1] }
