package fleet

import (
	"slices"
	"testing"
)

// Orders serve the same arrivals as their definitions say.
func TestOrders(t *testing.T) {
	// Tenant a sends three requests before b and c send one each. Prompts have 10 tokens.
	arrive := func(o order) {
		for i, tenant := range []string{"a", "a", "a", "b", "c"} {
			o.join(&Request{At: float64(i), Prompt: make([]uint32, 10), Client: Client{Tenant: tenant}})
		}
	}
	for _, c := range []struct {
		name  string
		order order
		want  string
	}{
		{"first come", &firstCome{}, "aaabc"},
		{"b ahead", &firstCome{ahead: func(c Client) bool { return c.Tenant == "b" }}, "baaac"},
		{"VTC", &counters{}, "abcaa"},
		{"round robin", &flows{}, "abcaa"},
		{"global strict", &flows{strict: true}, "aaabc"},
	} {
		arrive(c.order)
		var got []byte
		for r := c.order.next(); r != nil; r = c.order.next() {
			got = append(got, r.Client.Tenant...)
			c.order.take(sent{})
		}
		if string(got) != c.want || c.order.len() != 0 {
			t.Errorf("%s: the order is %s, and %d are left, want %s", c.name, got, c.order.len(), c.want)
		}
	}
}

// VTC charges output tokens, and a tenant that returns starts level with the others.
func TestCountersChargeTokensAndLiftTenants(t *testing.T) {
	o := &counters{}
	send := func(tenant string, n int) {
		for range n {
			o.join(&Request{Prompt: make([]uint32, 10), Client: Client{Tenant: tenant}})
		}
	}
	next := func() string {
		r := o.next()
		o.take(sent{})
		return r.Client.Tenant
	}
	send("a", 3)
	send("b", 3)
	r := o.next()
	o.take(sent{}) // a: 10
	for range 20 {
		o.token(r) // a: 50
	}
	if got := []string{next(), next(), next()}; !slices.Equal(got, []string{"b", "b", "b"}) {
		t.Errorf("after a's answer of 20 tokens the next are %v, want those of b", got)
	}
	send("c", 9) // c starts at 50 like a, not at 0
	if got := []string{next(), next(), next()}; !slices.Equal(got, []string{"a", "c", "a"}) {
		t.Errorf("a tenant that begins late is not level with the others: %v", got)
	}
}

// Higher bands go first under llm-d's fairness policies.
func TestFlowsServeHigherBandsFirst(t *testing.T) {
	for _, strict := range []bool{false, true} {
		o := &flows{strict: strict}
		for i, band := range []int32{0, 5, 0, 5} {
			o.join(&Request{At: float64(i), Client: Client{Tenant: string(rune('a' + i)), Band: band}})
		}
		var got []int32
		for r := o.next(); r != nil; r = o.next() {
			got = append(got, r.Client.Band)
			o.take(sent{})
		}
		if !slices.Equal(got, []int32{5, 5, 0, 0}) {
			t.Errorf("strict %v: bands are served in the order %v", strict, got)
		}
	}
}
