package manage

import (
	"errors"
	"net"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/api/mmesh"
)

// table has lines of /proc/net/tcp and /proc/net/tcp6 with listeners and a connection at port 8085
// (1F95).
const table = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F95 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1234 1 0000000000000000 100 0 0 10 0
   1: 0200007F:1F95 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1235 1 0000000000000000 100 0 0 10 0
   2: 00000000:1F96 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1236 1 0000000000000000 100 0 0 10 0
   3: 0100007F:1F95 0100007F:C001 01 00000000:00000000 00:00000000 00000000     0        0 1237 1 0000000000000000 100 0 0 10 0
   4: 0000000000000000FFFF00000100007F:1F95 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1238 1
   5: 00000000000000000000000001000000:1F95 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1239 1
   6: XX00007F:1F95 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1240 1
`

func TestListenersAreRead(t *testing.T) {
	var got []string
	for _, l := range listeners(table, 8085) {
		got = append(got, l.ip.String()+" "+l.inode)
	}
	want := []string{"127.0.0.1 1234", "127.0.0.2 1235", "127.0.0.1 1238", "::1 1239"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A place has other marks for each listener, and none after its end. Listeners at the same port of
// other addresses do not count.
func TestPlacesHaveMarks(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			if network == "tcp" && runtime.GOOS != "linux" {
				t.Skip("the system does not show the listeners of other processes")
			}
			address, at := "127.0.0.1:0", place("")
			if network == "unix" {
				address = filepath.Join(t.TempDir(), "s")
				at = place(unixScheme + address)
			}
			var before []string
			for life := range 3 {
				l, err := (&net.ListenConfig{}).Listen(t.Context(), network, address)
				if err != nil {
					t.Fatal(err)
				}
				if network == "tcp" {
					address = l.Addr().String()
					at = place(address)
				}
				marks, err := at.look(t.Context())
				if err != nil || len(marks) != 1 || slices.Equal(marks, before) {
					t.Errorf("life %d: %q, %v, after %q", life, marks, err, before)
				}
				if again, err := at.look(t.Context()); err != nil || !slices.Equal(again, marks) {
					t.Errorf("life %d: %q, %v; before, %q", life, again, err, marks)
				}
				if network == "tcp" {
					if _, err := place(strings.Replace(address, "127.0.0.1", "127.0.0.9", 1)).look(t.Context()); !errors.Is(err, ErrEnded) {
						t.Errorf("another address: %v", err)
					}
				}
				before = marks
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				if marks, err := at.look(t.Context()); !errors.Is(err, ErrEnded) {
					t.Errorf("after life %d: %q, %v", life, marks, err)
				}
			}
		})
	}
}

// A life goes on if a mark remains. Without marks, a restart must show in the list.
func TestLivesGoOn(t *testing.T) {
	with := func(marks string, seen bool, models ...string) *life {
		l := newLife()
		l.status = new(mmesh.RuntimeStatusResponse)
		l.marks, l.seen, l.old = strings.Fields(marks), seen, !seen
		for _, id := range models {
			l.models[id] = &model{loaded: true}
		}
		return l
	}
	listed := func(marks string, models ...string) Sight {
		return Sight{Marks: strings.Fields(marks), Lists: true, Models: models}
	}
	for name, c := range map[string]struct {
		life *life
		now  Sight
		want bool
	}{
		"a first life":                            {newLife(), Sight{Marks: []string{"1"}}, true},
		"a stored life that was not made ready":   {&life{old: true}, Sight{Marks: []string{"1"}}, true},
		"the same mark":                           {with("1", true), Sight{Marks: []string{"1"}}, true},
		"one of two marks":                        {with("1 2", true), Sight{Marks: []string{"2", "3"}}, true},
		"another mark":                            {with("1", true, "a"), listed("2", "a"), false},
		"no marks":                                {with("", true, "a"), Sight{}, true},
		"a stored life with the mark":             {with("1", false, "a"), Sight{Marks: []string{"1"}}, true},
		"a stored life with another mark":         {with("1", false, "a"), listed("2", "a"), false},
		"a stored life without marks":             {with("", false, "a"), Sight{}, false},
		"a stored life without marks, listed":     {with("", false, "a", "b"), listed("", "c", "a"), true},
		"a stored life without marks, not listed": {with("", false, "a"), listed("", "c"), false},
		"a stored life without models":            {with("", false), listed(""), true},
	} {
		if got := c.life.continues(c.now); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
}

// A look that finds no marks does not hide that the next one finds other marks.
func TestMarksThatWereMissing(t *testing.T) {
	engine := newEngine()
	agent, _ := readyAgent(t, Config{}, engine)
	life := agent.current().id
	for _, c := range []struct {
		marks []string
		same  bool
	}{{nil, true}, {[]string{"one"}, true}, {nil, true}, {[]string{"two"}, false}} {
		engine.mu.Lock()
		engine.marks = c.marks
		engine.mu.Unlock()
		if now, err := agent.look(t.Context()); err != nil || (now.id == life) != c.same {
			t.Errorf("marks %q: the same life %t, want %t; %v", c.marks, now.id == life, c.same, err)
		}
	}
}
