package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"

	"github.com/headgate/headgate/internal/process"
	"github.com/headgate/headgate/test/apiserver"
	"github.com/headgate/headgate/test/times"
)

var scale = flag.Bool("scale", false,
	"have control serve two Gateways of 1,000 HTTPRoutes while pods, Services and routes change, and put 20,000 Models onto 1,000 engines, and print what that takes")

// The size of TestControlAtScale.
const (
	scaleRoutes, scaleGateways, scaleListeners, scaleServices = 1000, 2, 50, 200
	// scalePools pools have scalePods pods each. scaleChanges objects change per second.
	scalePools, scalePods, scaleChanges = 50, 20, 20
	scaleSlices, scaleEdits             = 100, 100                            // changes of EndpointSlices; later changes of routes
	scaleTime, scaleLimit               = time.Minute, 500 * time.Millisecond // how long objects change; limit of a change's P99 latency
)

// TestControlAtScale prints what control consumes while 20 pods change per second. The API server
// has 1,000 HTTPRoutes on two Gateways of 50 listeners, 200 Services, and 50 pools of 20 pods. Each
// Gateway has a real Envoy. The test also prints the time from the API server's response to a
// change of a Service's endpoints, or of an HTTPRoute, until Envoy has been updated. When pods or
// Services change, control sends no listeners, routes or clusters.
func TestControlAtScale(t *testing.T) {
	runs(t, alone, raced)
	if !*scale {
		t.Skip("-scale starts it")
	}
	k := newKubernetes(t)
	k.objects.GatewayAPI()
	made := time.Now()
	k.fill()
	t.Logf("the objects are there after %v", time.Since(made).Round(time.Second))

	config, err := k.ServiceAccount(t.Context(), system, "headgate-control")
	if err != nil {
		t.Fatal(err)
	}
	starter := process.NewStarter()
	t.Cleanup(func() { close(starter) })
	dir, host := t.TempDir(), "127.77.0.1"
	start := func(name string, command *exec.Cmd) *process.Process {
		p, err := starter.Start(name, dir, command)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { p.Stop(10 * time.Second) })
		return p
	}
	socket := filepath.Join(dir, "envoys.sock")
	control := start("control", exec.Command(programs(t).Headgate, "control", "--kube", "--kubeconfig", apiserver.KubeconfigFile(t, config), "--listen",
		"unix:"+filepath.Join(dir, "control.sock"),
		"--xds-address", "unix:"+socket, "--pod", system+"/control-0", "--metrics-host", host, "--scrape-interval", "1m"))
	if err := control.AwaitOK(t.Context(), "http://"+host+":9091/readyz"); err != nil {
		t.Fatal(err)
	}
	for g := range scaleGateways {
		name := fmt.Sprintf("envoy-%d", g)
		bootstrap, err := exec.Command(programs(t).Headgate, "control", "bootstrap", "--control", socket, "--extproc", filepath.Join(dir, "none.sock"),
			"--admin", fmt.Sprintf("127.77.0.%d:9901", 10+g), "--node", name, fmt.Sprintf("default/g%d", g)).Output()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, name+".json")
		if err := os.WriteFile(file, bootstrap, 0o600); err != nil {
			t.Fatal(err)
		}
		start(name, exec.Command(programs(t).Envoy, "--config-path", file, "--disable-hot-restart", "--log-level", "error"))
	}
	f := follow(t, socket, "default/g0")
	// Before the changes each Envoy has the resources of its Gateway, and f has those of one
	// Gateway.
	all := sent{
		"clusters": scaleServices + scalePools + (scaleServices+scalePools)/scaleGateways, "listeners": scaleGateways + 1,
		"routes":    scaleGateways + 1,
		"endpoints": scaleServices + scaleServices/scaleGateways,
	}
	metrics := "http://" + host + ":9091/metrics"
	all.await(t, metrics)
	s := &stack{t: t}
	t.Logf("at rest control has %d MB and has sent %v", rss(t, control.PID())/1024, all)

	before, began := cpu(t, control.PID()), time.Now()
	usage := func() (cores float64, mb int64) {
		cores = (cpu(t, control.PID()) - before).Seconds() / time.Since(began).Seconds()
		return cores, int64(rss(t, control.PID()) / 1024)
	}
	stop := k.churn()
	took := every(scaleTime/scaleSlices, scaleSlices, func(i int) time.Duration {
		service, address := i%(scaleServices/scaleGateways)*scaleGateways, fmt.Sprintf("10.2.0.%d", 100+i)
		k.apply(scaleSlice(service, address))
		answered := time.Now()
		return f.has(resource.EndpointType, fmt.Sprintf("service/default/s%d/80", service), address).Sub(answered)
	})
	cores, mb := usage()
	t.Logf("%d changes of pods in %v: control uses %.2f cores and has %d MB", stop(), time.Since(began).Round(time.Second), cores, mb)
	t.Logf("from a changed EndpointSlice to its endpoints: %v", took)
	if mb > 300 || cores > 0.3 {
		t.Errorf("control takes %d MB and %.2f cores, want 300 and 0.3 at most", mb, cores)
	}
	took.Bound(t, "endpoints of a Service", scaleLimit)
	all["endpoints"] += 2 * scaleSlices // each change is sent to f and to the Envoy of the same Gateway
	all.await(t, metrics)

	// Now routes change, one after the other, while pods change as before.
	before, began, stop = cpu(t, control.PID()), time.Now(), k.churn()
	var served times.Times
	took = every(scaleTime/scaleEdits, scaleEdits, func(i int) time.Duration {
		to := fmt.Sprintf("edit-%d.test", 100+i)
		k.apply(scaleRoute(0, "filters: [{type: RequestRedirect, requestRedirect: {hostname: "+to+"}}]"))
		answered := time.Now()
		took := f.has(resource.RouteType, "port-18080", to).Sub(answered)
		s.await("Envoy serves the route as it is now", func() bool { return redirects(t, "127.77.0.10:18080", "l0.test", "/r0") == to })
		served = append(served, time.Since(answered))
		return took
	})
	cores, mb = usage()
	t.Logf("%d changes of pods and %d of a route: control uses %.2f cores and has %d MB", stop(), scaleEdits, cores, mb)
	t.Logf("from a changed HTTPRoute until an Envoy is told: %v; until one serves it: %v", took, served)
	served.Bound(t, "a changed HTTPRoute", scaleLimit)
	all["routes"] += 2 * scaleEdits
	all.await(t, metrics)
}

// every runs the function do n times, at an interval, and returns the durations that do returned.
func every(interval time.Duration, n int, do func(i int) time.Duration) (all times.Times) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for i := range n {
		<-tick.C
		all = append(all, max(do(i), 0))
	}
	return all
}

// churn changes pods until stop is called. stop returns the number of changes.
func (k *kubernetes) churn() (stop func() int) {
	end, changes := make(chan struct{}), 0
	var done sync.WaitGroup
	done.Go(func() {
		for tick := time.NewTicker(time.Second / scaleChanges); ; changes++ {
			select {
			case <-tick.C:
			case <-end:
				return
			}
			for _, pod := range apiserver.ReadObjects(k.t,
				scalePod(changes%scalePools, changes/scalePools%scalePods, []string{"False", "True"}[changes/scalePools/scalePods%2])) {
				if err := k.objects.Put(pod); err != nil {
					k.t.Error(err)
				}
			}
		}
	})
	stop = sync.OnceValue(func() int {
		close(end)
		done.Wait()
		return changes
	})
	k.t.Cleanup(func() { stop() }) // stops the changes if the test ends early
	return stop
}

// redirects sends a request for host to address and returns the host to which it is redirected,
// empty if it is not redirected.
func redirects(t *testing.T, address, host, path string) string {
	t.Helper()
	q, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	q.Host = host
	response, err := (&http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}).Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	to, err := response.Location()
	if err != nil {
		return ""
	}
	return to.Hostname()
}

// sent contains the number of resources that control has sent to Envoys, by kind, according to its
// metrics.
type sent map[string]int

// await waits until control has sent exactly these numbers, and fails the test if it sends more.
func (s sent) await(t *testing.T, metrics string) {
	t.Helper()
	var want []string
	for kind, n := range s {
		want = append(want, fmt.Sprintf("headgate_envoy_resources_total{kind=%q} %d", kind, n))
	}
	slices.Sort(want)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); ; <-tick.C {
		got := metricLines(t, metrics, `^headgate_envoy_resources_total`)
		if slices.Sort(got); slices.Equal(got, want) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("control has sent\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// fill creates all objects of the test, several at a time.
func (k *kubernetes) fill() {
	texts := []string{gatewayAPI + "GatewayClass\nmetadata: {name: headgate}\nspec: {controllerName: headgate.dev/gateway-controller}\n"}
	for g := range scaleGateways {
		var l strings.Builder
		for i := range scaleListeners {
			fmt.Fprintf(&l, "  - {name: l%d, port: %d, protocol: HTTP, hostname: l%d.test}\n", i, 18080+g, i)
		}
		texts = append(texts,
			fmt.Sprintf("%sGateway\nmetadata: {name: g%d}\nspec:\n  gatewayClassName: headgate\n  addresses: [{type: IPAddress, value: 127.77.0.%d}]\n  listeners:\n%s",
				gatewayAPI, g,
				10+g, &l))
	}
	for s := range scaleServices {
		texts = append(texts, fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: s%d}\nspec: {ports: [{port: 80}]}\n", s),
			scaleSlice(s, fmt.Sprintf("10.1.0.%d", s+1)))
	}
	for p := range scalePools {
		texts = append(texts,
			fmt.Sprintf("apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: p%d}\nspec: {selector: {matchLabels: {app: p%d}}, targetPorts: [{number: 8000}]}\n", p, p),
			fmt.Sprintf("apiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: m%d}\nspec: {parentRefs: [{name: g%d, sectionName: l%d}], backendRefs: [{name: p%d}]}\n", p,
				p%scaleGateways,
				p%scaleListeners, p))
		for i := range scalePods {
			texts = append(texts, scalePod(p, i, "True"))
		}
	}
	for r := range scaleRoutes {
		texts = append(texts, scaleRoute(r, fmt.Sprintf("backendRefs: [{name: s%d, port: 80}]", r%scaleServices)))
	}
	work := make(chan string)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for text := range work {
				k.apply(text)
			}
		})
	}
	for _, text := range texts {
		work <- text
	}
	close(work)
	all.Wait()
}

const gatewayAPI = "apiVersion: gateway.networking.k8s.io/v1\nkind: "

// scaleRoute returns the YAML of an HTTPRoute with one rule, which contains the text does.
func scaleRoute(i int, does string) string {
	return fmt.Sprintf("%sHTTPRoute\nmetadata: {name: r%d}\nspec:\n  parentRefs: [{name: g%d, sectionName: l%d}]\n  rules: [{matches: [{path: {type: PathPrefix, value: /r%d}}], %s}]\n",
		gatewayAPI, i, i%scaleGateways, i/scaleGateways%scaleListeners, i, does)
}

// scaleSlice returns the YAML of the EndpointSlice of a Service.
func scaleSlice(service int, address string) string {
	return fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s%[1]d, labels: {kubernetes.io/service-name: s%[1]d}}\naddressType: IPv4\n"+
		"ports: [{port: 80}]\nendpoints: [{addresses: ['%[2]s']}]\n", service, address)
}

// scalePod returns the YAML of a pod of a pool. ready is the status of its condition Ready.
func scalePod(pool, i int, ready string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: p%d-%d, labels: {app: p%d}}\nspec: {containers: [{name: engine, image: engine}]}\n"+
		"status: {podIP: 127.78.%d.%d, podIPs: [{ip: 127.78.%d.%d}], phase: Running, conditions: [{type: Ready, status: '%s'}]}\n", pool, i,
		pool, pool, i+1, pool, i+1, ready)
}

// metricLines returns the lines of a metrics page that match an expression.
func metricLines(t *testing.T, url, expression string) (lines []string) {
	t.Helper()
	response, err := http.Get(url) //nolint:gosec,noctx // of this test
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var page bytes.Buffer
	if _, err := page.ReadFrom(response.Body); err != nil {
		t.Fatal(err)
	}
	is := regexp.MustCompile(expression)
	for line := range strings.Lines(page.String()) {
		if is.MatchString(line) {
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	return lines
}
