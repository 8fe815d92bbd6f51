package llm

import (
	"context"
	"runtime"
	"testing"

	"github.com/headgate/headgate/internal/sim"
)

// A client may disconnect after its request was passed to the driver and before the driver handles
// it. The race detector checks that this is safe.
func TestClientThatLeavesBeforeTheDriverSeesItsRequestRacesWithNothing(t *testing.T) {
	d, err := newDriver(Config{}.withDefaults())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	go d.run(ctx)
	for range 20 {
		busy, hold, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
		d.post(func() { close(busy); <-hold })
		<-busy
		client, leave := context.WithCancel(t.Context())
		go func() {
			defer close(left)
			request := &ticket{request: sim.Request{Prompt: []uint32{1}, Output: []uint32{2}}}
			if refused, _ := d.submit(client, request); refused != nil {
				t.Error(refused)
			}
			d.cancel(request)
		}()
		for len(d.commands) == 0 {
			runtime.Gosched()
		}
		leave()
		close(hold)
		<-left
	}
	d.do(t.Context(), func() {
		if n := len(d.tickets); n != 0 {
			t.Errorf("%d requests are left", n)
		}
	})
	stop()
	<-d.stopped
}
