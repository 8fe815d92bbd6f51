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
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/headgate/headgate/test/apiserver"
	"github.com/headgate/headgate/test/process"
)

var scale = flag.Bool("scale", false, "have control serve two Gateways of 1,000 HTTPRoutes while pods come and go, and print what that takes")

// What TestControlAtScale has: so many of each.
const (
	scaleRoutes, scaleGateways, scaleListeners, scaleServices = 1000, 2, 50, 200
	scalePools, scalePods, scaleChanges                       = 50, 20, 20 // pods of a pool, changes in a second
	scaleTime                                                 = time.Minute
)

// TestControlAtScale prints what control takes, of an API server with 1,000 HTTPRoutes on two Gateways of 50 listeners, 200 Services and 50
// pools of 20 pods, for a real Envoy of each Gateway, while 20 pods in a second change. None of these changes sends listeners, routes or
// clusters.
func TestControlAtScale(t *testing.T) {
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
	control := start("control", exec.Command(programs.Control, "--kube", "--kubeconfig", apiserver.KubeconfigFile(t, config), "--listen", "unix:"+filepath.Join(dir, "control.sock"),
		"--envoys", "unix:"+socket, "--pod", system+"/control-0", "--metrics-host", host, "--look-interval", "1m"))
	if err := control.AwaitOK(t.Context(), "http://"+host+":9091/readyz"); err != nil {
		t.Fatal(err)
	}
	for g := range scaleGateways {
		name := fmt.Sprintf("envoy-%d", g)
		bootstrap, err := exec.Command(programs.Control, "bootstrap", "--control", socket, "--extproc", filepath.Join(dir, "none.sock"),
			"--admin", fmt.Sprintf("127.77.0.%d:9901", 10+g), "--node", name, fmt.Sprintf("default/g%d", g)).Output()
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(dir, name+".json")
		if err := os.WriteFile(file, bootstrap, 0o600); err != nil {
			t.Fatal(err)
		}
		start(name, exec.Command(programs.Envoy, "--config-path", file, "--disable-hot-restart", "--log-level", "error"))
	}
	sent := func() string {
		return strings.Join(metricLines(t, "http://"+host+":9091/metrics", `^headgate_envoy_resources_total`), "\n")
	}
	last, since := "", time.Now()
	for time.Since(since) < 10*time.Second { // until nothing is sent any more
		if now := sent(); now != last {
			last, since = now, time.Now()
		}
		time.Sleep(time.Second)
	}
	t.Logf("at rest control has %d MB and has sent\n%s", rss(t, control.PID())/1024, last)

	before, began, changes := cpu(t, control.PID()), time.Now(), 0
	for tick := time.NewTicker(time.Second / scaleChanges); time.Since(began) < scaleTime; changes++ {
		<-tick.C
		k.objects.Apply(scalePod(changes%scalePools, changes/scalePools%scalePods, []string{"True", "False"}[changes/scalePools/scalePods%2]))
	}
	took := time.Since(began)
	used := (cpu(t, control.PID()) - before).Seconds() / took.Seconds()
	t.Logf("%d changes of pods in %v: control uses %.2f cores and has %d MB", changes, took.Round(time.Second), used, rss(t, control.PID())/1024)
	if now := sent(); now != last {
		t.Errorf("pods have something sent:\n%s\nbefore\n%s", now, last)
	}
	if mb := rss(t, control.PID()) / 1024; mb > 300 || used > 0.3 {
		t.Errorf("control takes %d MB and %.2f cores, want 300 and 0.3 at most", mb, used)
	}
}

// fill makes the objects, several at a time.
func (k *kubernetes) fill() {
	const gateway = "apiVersion: gateway.networking.k8s.io/v1\nkind: "
	texts := []string{gateway + "GatewayClass\nmetadata: {name: headgate}\nspec: {controllerName: headgate.dev/gateway-controller}\n"}
	for g := range scaleGateways {
		var l strings.Builder
		for i := range scaleListeners {
			fmt.Fprintf(&l, "  - {name: l%d, port: %d, protocol: HTTP, hostname: l%d.test}\n", i, 18080+g, i)
		}
		texts = append(texts, fmt.Sprintf("%sGateway\nmetadata: {name: g%d}\nspec:\n  gatewayClassName: headgate\n  addresses: [{type: IPAddress, value: 127.77.0.%d}]\n  listeners:\n%s", gateway, g, 10+g, &l))
	}
	for s := range scaleServices {
		texts = append(texts, fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {name: s%d}\nspec: {ports: [{port: 80}]}\n", s),
			fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s%d, labels: {kubernetes.io/service-name: s%d}}\naddressType: IPv4\nports: [{port: 80}]\nendpoints: [{addresses: ['10.1.0.%d']}]\n", s, s, s+1))
	}
	for p := range scalePools {
		texts = append(texts, fmt.Sprintf("apiVersion: inference.networking.k8s.io/v1\nkind: InferencePool\nmetadata: {name: p%d}\nspec: {selector: {matchLabels: {app: p%d}}, targetPorts: [{number: 8000}]}\n", p, p),
			fmt.Sprintf("apiVersion: inference.x-k8s.io/v1alpha1\nkind: LLMRoute\nmetadata: {name: m%d}\nspec: {parentRefs: [{name: g%d, sectionName: l%d}], backendRefs: [{name: p%d}]}\n", p, p%scaleGateways, p%scaleListeners, p))
		for i := range scalePods {
			texts = append(texts, scalePod(p, i, "True"))
		}
	}
	for r := range scaleRoutes {
		texts = append(texts, fmt.Sprintf("%sHTTPRoute\nmetadata: {name: r%d}\nspec:\n  parentRefs: [{name: g%d, sectionName: l%d}]\n  rules: [{matches: [{path: {type: PathPrefix, value: /r%d}}], backendRefs: [{name: s%d, port: 80}]}]\n",
			gateway, r, r%scaleGateways, r/scaleGateways%scaleListeners, r, r%scaleServices))
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

// scalePod is a pod of a pool, ready or not.
func scalePod(pool, i int, ready string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: p%d-%d, labels: {app: p%d}}\nspec: {containers: [{name: engine, image: engine}]}\n"+
		"status: {podIP: 127.78.%d.%d, podIPs: [{ip: 127.78.%d.%d}], phase: Running, conditions: [{type: Ready, status: '%s'}]}\n", pool, i, pool, pool, i+1, pool, i+1, ready)
}

// metricLines are the lines of a page of metrics that fit an expression.
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
