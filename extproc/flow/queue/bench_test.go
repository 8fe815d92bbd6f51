package queue_test

import (
	"fmt"
	"runtime"
	"strconv"
	"testing"

	"github.com/headgate/headgate/extproc/flow/queue"
)

// shape is a way to spread requests over flows.
type shape struct {
	name string
	of   func(flow int) queue.Path
}

var shapes = []shape{
	{"tenants", func(flow int) queue.Path { return queue.Path{Route: route("r"), Tenant: uint64(flow)} }},
	{"routes", func(flow int) queue.Path { return queue.Path{Route: route(strconv.Itoa(flow))} }},
	{"programs", func(flow int) queue.Path { return queue.Path{Route: route("r"), Tenant: 1, Program: uint64(flow)} }},
	{"models", func(int) queue.Path { return queue.Path{Route: route("r")} }},
}

// loaded returns a queue with requests in flows, each of its own model, of which the first few are
// ready. Each flow has the same number of requests.
func loaded(s shape, requests, flows, ready int) (*queue.Queue[int], []queue.Request) {
	q := queue.New[int]()
	all := make([]queue.Request, flows)
	for i := range all {
		all[i] = queue.Request{Path: s.of(i), Model: fmt.Sprint("model-", i), Service: 1, Bytes: 1000}
	}
	for i := range requests {
		q.Join(i, all[i%flows])
	}
	for i := ready; i < flows; i++ {
		q.SetReady(all[i].Model, false)
	}
	return q, all[:ready]
}

// BenchmarkJoinAndDispatch shows that the cost of a request does not grow with what waits: 10
// requests, or 10,000 in 1,000 flows of 1,000 models, of which 10 are ready.
func BenchmarkJoinAndDispatch(b *testing.B) {
	for _, s := range shapes {
		for _, size := range []struct{ requests, flows int }{{10, 10}, {10000, 1000}} {
			b.Run(fmt.Sprintf("flows=%s/waiting=%d", s.name, size.requests), func(b *testing.B) {
				q, ready := loaded(s, size.requests, size.flows, 10)
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					q.Join(i, ready[i%len(ready)])
					q.Dispatch(q.Next()).Settle(1)
				}
			})
		}
	}
}

// BenchmarkRoom is one slot that becomes free: the models with room are ready, the first request
// goes, and the next one finds no room again.
func BenchmarkRoom(b *testing.B) {
	for _, size := range []struct{ requests, flows, models int }{{10, 10, 1}, {10000, 1000, 1}, {10, 10, 10}, {10000, 1000, 10}} {
		b.Run(fmt.Sprintf("models=%d/waiting=%d", size.models, size.requests), func(b *testing.B) {
			q := queue.New[int]()
			request := func(i int) queue.Request {
				return queue.Request{
					Path:  queue.Path{Route: route("r"), Tenant: uint64(i % size.flows)},
					Model: fmt.Sprint("model-", i%size.models), Service: 1,
				}
			}
			for i := range size.requests {
				q.Join(i, request(i))
			}
			requests := make([]queue.Request, size.flows)
			models := make([]string, size.models)
			for i := range requests {
				requests[i] = request(i)
				models[i%size.models] = requests[i].Model
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				for _, m := range models {
					q.SetReady(m, true)
				}
				p := q.Next()
				q.Join(i, requests[p.Waiter%size.flows])
				q.Dispatch(p).Settle(1)
				for p := q.Next(); p != nil; p = q.Next() {
					q.SetReady(p.Model(), false)
				}
			}
		})
	}
}

func BenchmarkVictim(b *testing.B) {
	q, _ := loaded(shapes[0], 10000, 1000, 1000)
	for b.Loop() {
		q.Victim(0, false)
	}
}

func BenchmarkFirst(b *testing.B) {
	q, _ := loaded(shapes[0], 10000, 1000, 10)
	for b.Loop() {
		q.First()
	}
}

// heapBytes returns the size of the heap in use.
func heapBytes() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
