package envoy_test

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/headgate/headgate/api/wire"
	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/headgate/envoy/find"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/process"
)

// requests returns test requests: all hosts with a few paths, and one host with all paths, methods
// and headers.
func requests() (all []plan.Request) {
	for _, host := range []string{"a.test", "A.test:8080", "b.test", "x.a.test", "c.example", "elsewhere"} {
		for _, path := range []string{"/", "/long/path"} {
			all = append(all, plan.Request{Host: host, Path: path, Method: "GET"})
		}
	}
	for _, path := range wire.InferencePaths {
		all = append(all, plan.Request{Host: "a.test", Path: path, Method: "POST"})
	}
	for _, path := range []string{
		"/1", "/2", "/health", "/a/b", "/a/b?q=1", "/a/b?q=1&r=1", "/x/y?q=1", "/", "/x", "/x/", "/x/7", "/x/7/8", "/xy", "/a", "/aa",
		"/a/long", "/a/long/er", "/a?q=1", "/a?q=1&r=1", "/x?q=1", "/x?q=2", "/ok/1",
		"/v1/completions", "/v1/embeddings", "/v1/models", "/v1/models/m", "/v1/modelsx", "/v1/responses/x/cancel",
		"/org.Echo/Say", "/org.Echo/Other", "/org.EchoX/Other", "/org.A/Do", "/org.X/Say.It", "/org.X/SayXIt",
	} {
		for _, method := range []string{"GET", "PUT"} {
			for _, headers := range []map[string]string{
				nil, {"h": "1"}, {"h": "2"}, {"h": "1", "i": "1"}, {"X-Team": "ml", "v": "v7"}, {"X-Team": "ml", "v": "v7x"},
			} {
				all = append(all, plan.Request{Host: "a.test", Path: path, Method: method, Headers: headers})
			}
		}
	}
	return all
}

// takes returns the rule of the plan that matches a request: its listener, its domain and its
// index. It returns an empty text if none matches.
func takes(p *plan.Port, r plan.Request) string {
	t := p.Take(r)
	if t.Rule == nil {
		return ""
	}
	return fmt.Sprintf("%s %s %d", t.Listener, cmp.Or(t.Host.Domain, "*"), len(t.Passed))
}

// For each request, a real Envoy chooses the same rule as the plan. This holds for all scenarios
// and ports.
func TestEnvoyMatchesThePlan(t *testing.T) {
	binary, err := find.Envoy(t.Context(), "../../../.cache", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	tried, found := 0, make(map[string]bool)
	number := 0
	for name, n := range scenarios(t) {
		if !strings.HasPrefix(name, "matches") && !strings.HasPrefix(name, "hosts") && !strings.HasPrefix(name, "backends") {
			continue
		}
		number++
		for _, p := range plan.Of(attach.Of(n), n, plan.Known{Certificates: certificates(n)}).Gateways {
			own := fmt.Sprintf("127.%d.%d.1", 200+os.Getpid()%50, number)
			o := options(t)
			o.Bind = func(port int32) (string, uint32) { return own, 20000 + uint32(port) }
			r, err := template(t).Of(p, o)
			if err != nil {
				t.Fatal(err)
			}
			// Each route only responds with its virtual host and index, in a header.
			for _, routes := range r.Routes {
				for _, host := range routes.GetVirtualHosts() {
					for i, route := range host.GetRoutes() {
						route.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 200}}
						route.TypedPerFilterConfig = nil
						route.ResponseHeadersToAdd = []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{
							Key:   "x-rule",
							Value: fmt.Sprintf("%s %d", host.GetName(), i),
						}}}
					}
				}
			}
			r.Clusters = nil
			// Listeners with TLS are not tested.
			r.Listeners = slices.DeleteFunc(r.Listeners, func(l *listenerv3.Listener) bool { return len(l.GetListenerFilters()) > 0 })
			stop := serve(t, binary, string(inline(t, r)), own)
			for i := range p.Ports {
				if p.Ports[i].Listeners[0].Protocol != "HTTP" {
					continue
				}
				for _, q := range requests() {
					want := takes(&p.Ports[i], q)
					got := ask(t, fmt.Sprintf("%s:%d", own, 20000+p.Ports[i].Number), q)
					if got != want {
						t.Fatalf("%s, port %d: %+v matches %q, want %q", name, p.Ports[i].Number, q, got, want)
					}
					tried++
					if want != "" {
						found[name+want] = true
					}
				}
			}
			stop()
		}
	}
	if len(found) < 57 { // the other rules never match: earlier ones match instead
		t.Errorf("the requests match only %d rules", len(found))
	}
	t.Logf("%d requests, which match %d rules", tried, len(found))
}

var client = &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}

// ask sends a request to Envoy, and returns the rule that matched, in the format of takes. It
// returns an empty text if none matched.
func ask(t *testing.T, address string, r plan.Request) string {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), r.Method, "http://"+address+r.Path, nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Host = r.Host
	for name, value := range r.Headers {
		q.Header.Set(name, value)
	}
	response, err := client.Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Fatal(err)
	}
	if response.StatusCode != http.StatusOK && response.StatusCode != http.StatusNotFound {
		t.Fatalf("%+v gets %s", r, response.Status)
	}
	return response.Header.Get("x-rule")
}

// serve runs an Envoy until stop is called.
func serve(t *testing.T, binary, config, own string) (stop func()) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "envoy.json")
	config = strings.Replace(config, `"address":"127.0.0.1"`, `"address":"`+own+`"`, 1)
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	starter := process.NewStarter()
	p, err := starter.Start("envoy", dir, exec.Command(binary, "--config-path", file, "--disable-hot-restart", "--log-level", "warning"))
	if err != nil {
		t.Fatal(err)
	}
	stop = func() {
		client.CloseIdleConnections()
		p.Stop(5 * time.Second)
		close(starter)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := p.AwaitOK(ctx, "http://"+own+":9901/ready"); err != nil {
		stop()
		t.Fatal(err)
	}
	return stop
}
