package queue_test

import (
	"runtime"
	"testing"

	"github.com/headgate/headgate/extproc/flow/queue"
)

// A million tenants come and go while one of them keeps the queue busy. What remains of them is
// bounded.
func TestMillionTenantsStayBounded(t *testing.T) {
	const bound = 4 << 20
	before := heapBytes()
	q := queue.New[int]()
	busy := of("r", 0)
	busy.Service = 1e-9 // the virtual time stays back, so that every tenant is ahead of it
	q.Join(0, busy)
	for i := range 1_000_000 {
		r := of("r", uint64(i)+1)
		r.Program = uint64(i)
		p := q.Join(i, r)
		if q.Dispatch(p).Settle(float64(i + 1)); i%50000 == 0 && q.Debug().Nodes > 5000 {
			t.Fatalf("%+v after %d tenants", q.Debug(), i+1)
		}
	}
	bytes := heapBytes() - before
	t.Logf("%+v in %d bytes", q.Debug(), bytes)
	if bytes > bound {
		t.Errorf("%d bytes are in use, more than %d", bytes, bound)
	}
	if q.Debug().Idle < 4000 {
		t.Errorf("only %d tags are kept", q.Debug().Idle)
	}
	runtime.KeepAlive(q)
}

func TestBytesOfAWaitingRequest(t *testing.T) {
	for _, c := range []struct {
		name     string
		programs uint64 // per tenant
		of       uint64 // requests per program
		bound    int64
	}{
		{"in a flow of its own, of a tenant of its own", 1, 1, 2048},
		{"in a flow of 10", 1, 10, 320},
	} {
		t.Run(c.name, func(t *testing.T) {
			const n = 10000
			before := heapBytes()
			q := queue.New[int]()
			for i := range uint64(n) {
				r := of("r", i/c.of/c.programs)
				r.Program = i / c.of
				q.Join(0, r)
			}
			bytes := (heapBytes() - before) / n
			t.Logf("%d bytes per request", bytes)
			if bytes > c.bound {
				t.Errorf("%d bytes per request, more than %d", bytes, c.bound)
			}
			runtime.KeepAlive(q)
		})
	}
}
