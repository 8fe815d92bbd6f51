package relay

import (
	"io"
	"runtime"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// pipeSize is the capacity of a pipe between two sockets in bytes. An unprivileged user may
	// have 256 such pipes (fs.pipe-user-pages-soft); further ones are smaller.
	pipeSize = 256 << 10
	// spliceFlags move pages without a copy, and never block.
	spliceFlags = unix.SPLICE_F_MOVE | unix.SPLICE_F_NONBLOCK
)

// pipe carries bytes from one socket to another within the kernel.
type pipe struct{ read, write int }

// pipes are unused pipes. An idle connection has none.
var pipes sync.Pool

func takePipe() (*pipe, error) {
	if p, ok := pipes.Get().(*pipe); ok {
		return p, nil
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return nil, err
	}
	_, _ = unix.FcntlInt(uintptr(ends[0]), unix.F_SETPIPE_SZ, pipeSize) // it also works with the default size
	p := &pipe{ends[0], ends[1]}
	runtime.SetFinalizer(p, (*pipe).close)
	return p, nil
}

func (p *pipe) close() {
	runtime.SetFinalizer(p, nil)
	_ = unix.Close(p.read)
	_ = unix.Close(p.write)
}

// passage copies the bytes of one direction of a connection. io.Copy also uses splice, but it
// occupies a pipe while it waits for bytes, and each of its system calls wakes the runtime's
// monitor thread. The calls here never block, so they bypass the runtime's scheduler.
type passage struct {
	pipe  *pipe
	n     int64 // bytes in the pipe
	err   error
	total int64
}

// fill moves bytes from a socket into a pipe. It returns false if there are none yet.
func (p *passage) fill(from uintptr) bool {
	if p.pipe == nil {
		if p.pipe, p.err = takePipe(); p.err != nil {
			return true
		}
	}
	p.n, p.err = splice(int(from), p.pipe.write, pipeSize)
	if p.err == syscall.EAGAIN { //nolint:errorlint // of a system call
		pipes.Put(p.pipe)
		p.pipe = nil
		return false
	}
	return true
}

// drain moves the bytes of the pipe into a socket. It returns false if the socket has no room for
// the rest.
func (p *passage) drain(to uintptr) bool {
	for p.n > 0 {
		n, err := splice(p.pipe.read, int(to), int(p.n))
		if err == syscall.EAGAIN { //nolint:errorlint // of a system call
			return false
		}
		if p.err = err; err != nil {
			return true
		}
		p.n -= n
		p.total += n
	}
	return true
}

func splice(from, to, n int) (int64, error) {
	for {
		moved, _, errno := syscall.RawSyscall6(unix.SYS_SPLICE, uintptr(from), 0, uintptr(to), 0, uintptr(n), spliceFlags)
		switch errno {
		case 0:
			return int64(moved), nil
		case syscall.EINTR:
		default:
			return 0, errno
		}
	}
}

// copyBytes copies bytes until from ends, and returns how many. Between sockets the bytes stay in
// the kernel.
func copyBytes(to io.Writer, from io.Reader) (int64, error) {
	source, ok := from.(syscall.Conn)
	target, too := to.(syscall.Conn)
	if !ok || !too {
		return io.Copy(to, from)
	}
	in, err := source.SyscallConn()
	if err != nil {
		return 0, err
	}
	out, err := target.SyscallConn()
	if err != nil {
		return 0, err
	}
	var p passage
	for {
		if err := in.Read(p.fill); err != nil || p.err != nil || p.n == 0 {
			p.end()
			return p.total, first(err, p.err)
		}
		if err := out.Write(p.drain); err != nil || p.err != nil {
			p.end()
			return p.total, first(err, p.err)
		}
	}
}

// end returns the pipe, or closes it if it has bytes.
func (p *passage) end() {
	switch {
	case p.pipe == nil:
	case p.n == 0:
		pipes.Put(p.pipe)
	default:
		p.pipe.close()
	}
}

// first returns the first error that is not nil.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
