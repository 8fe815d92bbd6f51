package stream_test

import (
	"testing"
	"time"

	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/extproc/stream"
)

// With ExplainPicks, the metadata of each decision has what the policy compared, whatever the
// policy. Where policy latency waits for measurements, each decision says so.
func TestPicksOfEveryPolicyAreExplained(t *testing.T) {
	for _, explain := range []bool{false, true} {
		for rule := pick.Proposal; rule <= pick.Latency; rule++ {
			f := newFleet()
			server, _ := newServer(t, f, func(c *stream.Config) { c.Settings.Policy.Rule, c.ExplainPicks = rule, explain })
			x := server.Exchange(stream.Own, "base-picker:9002", 9002)
			decided := 0
			for _, line := range []string{"headers :method=POST :path=/v1/completions", `body {"model":"text-to-sql","prompt":"x"}`} {
				responses, err := x.Receive(message(t, line), time.Now())
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range responses {
					told := r.GetDynamicMetadata().GetFields()["gateway.pick"].GetStructValue().GetFields()
					if told == nil {
						continue
					}
					decided++
					want := ""
					if rule == pick.Latency {
						want = "waiting for measurements"
					}
					if got := told["fallback"].GetStringValue(); got != want {
						t.Errorf("%v: the fallback is %q, want %q", rule, got, want)
					}
					is := told["expected"].GetStructValue().GetFields()
					if (is != nil) != explain {
						t.Errorf("%v: explained: %v, want %v", rule, is, explain)
					}
					if !explain {
						continue
					}
					if is["endpoint"].GetStringValue() == "" || is["state"].GetStringValue() != "healthy" ||
						is["reason"].GetStringValue() != told["reason"].GetStringValue() || is["requests"] == nil ||
						is["requests"].GetNumberValue() != 0 || is["adapter_requests"] == nil || is["active_adapters"] == nil {
						t.Errorf("%v: the explanation is %v", rule, is)
					}
				}
			}
			if decided != 1 {
				t.Errorf("%v: %d decisions", rule, decided)
			}
			x.ReleaseLease()
			x.End(time.Now())
		}
	}
}
