package pick_test

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/headgate/headgate/extproc/pick"
)

// numbered returns a pool of n endpoints. The Number of each endpoint is its index plus one.
func numbered(n int) *pick.Pool {
	p := new(pick.Pool)
	for i := range n {
		p.Endpoints = append(p.Endpoints, &pick.Endpoint{
			Number: i + 1, Hash: rand.New(rand.NewPCG(uint64(i), 0)).Uint64(),
			Address: address(i + 1),
		})
		p.Any = append(p.Any, pick.Copy{Endpoint: i})
	}
	return p
}

func address(number int) string { return "10.0.0." + strconv.Itoa(number) + ":8000" }

// home returns the number of the rendezvous endpoint of the prompt beginning with this hash; 0 if
// there is none. It fails the test if there is more than one.
func home(t *testing.T, p *pick.Pool, hash uint64) int {
	t.Helper()
	return homeOf(t, p, pick.Request{}, hash)
}

func homeOf(t *testing.T, p *pick.Pool, r pick.Request, hash uint64) int {
	t.Helper()
	all := p.Expect(r, hash, 32, 0.5, nil)
	at := slices.Index(all, 16)
	for i, n := range all {
		if n != 0 && i != at {
			t.Fatalf("the expected blocks are %v", all)
		}
	}
	return max(0, at)
}

func TestUnknownPromptIsExpectedAtItsRendezvousEndpoint(t *testing.T) {
	p := numbered(8)
	at := home(t, p, 1)
	for i, c := range []struct {
		p         *pick.Pool
		beginning int
		familiar  float64
		cached    []int32
		want      int32 // blocks expected at the rendezvous endpoint
	}{
		{p, 32, 0.5, nil, 16},
		{p, 32, 1, make([]int32, 20), 32},
		{p, 4, 0.9, make([]int32, 2), 3},
		{p, 32, 0, nil, 0},        // prompts have no common beginnings
		{p, 0, 1, nil, 0},         // the prompt is too short
		{p, 32, 1, []int32{1}, 0}, // this process sent a part of the prompt to an endpoint
		{nil, 32, 1, nil, 0},
		{new(pick.Pool), 32, 1, nil, 0},
	} {
		got := c.p.Expect(pick.Request{}, 1, c.beginning, c.familiar, slices.Clone(c.cached))
		want := slices.Clone(c.cached)
		if c.want > 0 {
			want = append(want, make([]int32, max(0, at+1-len(want)))...)
			want[at] = c.want
		}
		if !slices.Equal(got, want) {
			t.Errorf("%d: the expected blocks are %v, want %v", i+1, got, want)
		}
	}
	room := make([]int32, 0, 20)
	if n := testing.AllocsPerRun(10, func() { p.Expect(pick.Request{}, 1, 32, 1, room) }); n > 0 {
		t.Errorf("it allocates %v times", n)
	}
}

// Prompt beginnings are spread over the endpoints, in whatever order these are listed. If an
// endpoint gets no requests, its beginnings move to other endpoints, and all other beginnings stay.
func TestRendezvousEndpointsAreStable(t *testing.T) {
	const beginnings = 8000
	p, without := numbered(8), numbered(8)
	without.Endpoints[3].State = pick.Out // endpoint number 4
	slices.Reverse(without.Endpoints)
	homes := make([]int, 9)
	for hash := range uint64(beginnings) {
		is, then := home(t, p, hash), home(t, without, hash)
		homes[is]++
		if then == 4 || is != 4 && is != then {
			t.Fatalf("a beginning moves from %d to %d when 4 gets no requests", is, then)
		}
	}
	for number, n := range homes[1:] {
		if n < beginnings/8*8/10 || n > beginnings/8*12/10 {
			t.Errorf("%d beginnings have the rendezvous endpoint %d, of %d", n, number+1, beginnings)
		}
	}
}

// A rendezvous endpoint can serve the request, and has a prefix cache.
func TestRendezvousEndpointCanServeTheRequest(t *testing.T) {
	p := numbered(8)
	p.Listed = true
	p.Copies = map[string][]pick.Copy{"sql": {{Endpoint: 2}, {Endpoint: 5}}}
	p.Endpoints[6].Forgets = true // endpoint number 7
	for _, c := range []struct {
		what string
		r    pick.Request
		want []int
	}{
		{"for any model", pick.Request{}, []int{1, 2, 3, 4, 5, 6, 8}},
		{"for an adapter", pick.Request{Model: "sql"}, []int{3, 6}},
		{"where the data plane allows two", pick.Request{Only: pick.ParseSubset([]string{address(2), address(4)})}, []int{2, 4}},
		{"where it allows one without a prefix cache", pick.Request{Only: pick.ParseSubset([]string{address(7)})}, []int{0}},
		{"for a model without a copy", pick.Request{Model: "chat"}, []int{0}},
	} {
		var homes []int
		for hash := range uint64(200) {
			if at := homeOf(t, p, c.r, hash); !slices.Contains(homes, at) {
				homes = append(homes, at)
			}
		}
		if slices.Sort(homes); !slices.Equal(homes, c.want) {
			t.Errorf("prompts %s have the rendezvous endpoint %v, want %v", c.what, homes, c.want)
		}
	}
}
