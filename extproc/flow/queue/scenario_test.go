package queue_test

import (
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"
	"testing"

	"github.com/headgate/headgate/extproc/flow/queue"
	"github.com/headgate/headgate/test/golden"
)

// TestScenarios runs scenario files, which show orders. Each line is a command:
//
//	join N NAME [SETTING=VALUE...]
//	    N requests join. Settings: route=NAME (r), share=N (1), band=N (0), tenant=ID, program=ID,
//	    programs=N (each of the N requests has a program of its own), model=NAME (m),
//	    service=N (1), bytes=N (1)
//	full MODEL
//	ready MODEL
//	    the model has no room, or room again
//	serve N [actual=N]
//	    dispatch N requests in order, print their names, and settle what they really took
//	start NAME
//	    dispatch the next request; its service is settled by finish
//	charge NAME N
//	finish NAME N
//	    charge a started request, or settle it
//	edit ROUTE [share=N] [band=N]
//	    change a route
//	drop N [bytes]
//	    drop N victims, as if the queue were full, and print their names
//	first
//	    print the first request in order, whether its model has room or not
//	ahead [SETTING=VALUE...]
//	    print what a newcomer would wait for
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		return func(input string) string {
			s := &scenario{t: t, queue: queue.New[string](), started: make(map[string]*queue.Account[string])}
			var out strings.Builder
			for line := range strings.Lines(input) {
				out.WriteString(s.do(strings.Fields(line)))
			}
			return out.String()
		}
	})
}

type scenario struct {
	t       *testing.T
	queue   *queue.Queue[string]
	started map[string]*queue.Account[string]
}

// do runs a command and returns what it prints.
func (s *scenario) do(words []string) string {
	if len(words) == 0 || words[0] == "#" {
		return ""
	}
	var names []string // those that the command prints
	switch command, args := words[0], words[1:]; command {
	case "join":
		settings := s.settings(args[2:])
		for i := range s.integer(args[0]) {
			r := s.request(settings)
			if settings["programs"] != "" {
				r.Program = uint64(i + 1)
			}
			s.queue.Join(args[1], r)
		}
		return ""
	case "full", "ready":
		s.queue.SetReady(args[0], command == "ready")
		return ""
	case "serve":
		settings := s.settings(args[1:])
		for range s.integer(args[0]) {
			p := s.queue.Next()
			if p == nil {
				names = append(names, "(none can go)")
				break
			}
			actual := p.Service()
			if a := settings["actual"]; a != "" {
				actual = s.number(a)
			}
			names = append(names, p.Waiter)
			s.queue.Dispatch(p).Settle(actual)
		}
	case "start":
		p := s.queue.Next()
		names = append(names, p.Waiter)
		s.started[args[0]] = s.queue.Dispatch(p)
	case "charge":
		s.started[args[0]].Charge(s.number(args[1]))
		return ""
	case "finish":
		s.started[args[0]].Settle(s.number(args[1]))
		return ""
	case "edit":
		r := s.request(s.settings(args[1:]))
		s.queue.Reprioritize(route(args[0]), r.Band, r.Share)
		return ""
	case "drop":
		for range s.integer(args[0]) {
			p := s.queue.Victim(1000, len(args) > 1)
			names = append(names, p.Waiter)
			s.queue.Leave(p)
		}
	case "first":
		names = append(names, s.queue.First().Waiter)
	case "ahead":
		service, part := s.queue.Ahead(s.request(s.settings(args)))
		return fmt.Sprintf("ahead: service %.4g, %.4g of the rate\n", service, part)
	default:
		s.t.Fatalf("no command %q", command)
	}
	return strings.Join(words, " ") + ": " + strings.Join(names, " ") + "\n"
}

func (s *scenario) settings(args []string) map[string]string {
	all := make(map[string]string)
	for _, arg := range args {
		name, value, _ := strings.Cut(arg, "=")
		all[name] = value
	}
	return all
}

func (s *scenario) request(settings map[string]string) queue.Request {
	r := queue.Request{Path: queue.Path{Route: route("r"), Share: 1}, Model: "m", Service: 1, Bytes: 1, Since: start}
	for name, value := range settings {
		switch name {
		case "route":
			r.Route = route(value)
		case "share":
			r.Share = int32(s.integer(value))
		case "band":
			r.Band = int32(s.integer(value))
		case "tenant":
			r.Tenant = id(value)
		case "program":
			r.Program = id(value)
		case "model":
			r.Model = value
		case "service":
			r.Service = s.number(value)
		case "bytes":
			r.Bytes = int64(s.integer(value))
		case "programs":
		default:
			s.t.Fatalf("no setting %q", name)
		}
	}
	return r
}

func (s *scenario) integer(word string) int {
	n, err := strconv.Atoi(word)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

func (s *scenario) number(word string) float64 {
	n, err := strconv.ParseFloat(word, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return n
}

// id returns a hash of a tenant or program.
func id(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return h.Sum64()
}
