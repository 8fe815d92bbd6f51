package command

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/headgate/headgate/extproc/fleet"
	"github.com/headgate/headgate/extproc/fleet/endpointstate"
	"github.com/headgate/headgate/extproc/pick"
	"github.com/headgate/headgate/internal/engine"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/source"
	"github.com/headgate/headgate/test/apiserver"
)

var believer = flag.String("believer", "", "what BenchmarkKubeChurn starts: believe the API server of this kubeconfig")

// The numbers of pods and pools of the benchmark, and the interval between changes of readiness.
const (
	churnPods, churnPools = 1000, 50
	churnEvery            = time.Second / 20
)

func churnAddress(i int) string { return fmt.Sprintf("10.0.%d.%d", i/256, i%256) }

// BenchmarkKubeChurn measures how long it takes from a change of a pod at the API server until the
// fleet uses it: 1,000 pods in 50 pools, 20 of which become ready or unready each second. The fleet
// runs in a process of its own, whose CPU and memory use the benchmark reports.
//
//	go test -run '^$' -bench KubeChurn -benchtime 1200x ./extproc/command
func BenchmarkKubeChurn(b *testing.B) {
	server := apiserver.Run(b)
	objects := server.Objects(b)
	objects.CRDs()
	var texts []string
	for i := range churnPools {
		texts = append(texts,
			fmt.Sprintf("{apiVersion: inference.networking.k8s.io/v1, kind: InferencePool, metadata: {name: p%d}, spec: {selector: {matchLabels: {app: p%[1]d}}, targetPorts: [{number: 8000}]}}", i))
	}
	for i := range churnPods {
		texts = append(texts,
			fmt.Sprintf("{apiVersion: v1, kind: Pod, metadata: {name: e%d, labels: {app: p%d}}, spec: {containers: [{name: engine, image: none}]}, "+
				`status: {podIP: %s, podIPs: [{ip: %[3]s}], phase: Running, conditions: [{type: Ready, status: "True"}]}}`, i, i%churnPools,
				churnAddress(i)))
	}
	objects.Apply(strings.Join(texts, "\n---\n"))
	config := apiserver.KubeconfigFile(b, server.Admin())

	process := exec.CommandContext(b.Context(), os.Args[0], "-test.run", "^TestBeliever$", "-test.v", "-believer", config)
	process.Stderr = os.Stderr
	end, err := process.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	said, err := process.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := process.Start(); err != nil {
		b.Fatal(err)
	}
	believes := make(chan believed, churnPods)
	figures := make(map[string]float64)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(believes)
		for lines := bufio.NewScanner(said); lines.Scan(); {
			var is believed
			var nanos int64
			if n, _ := fmt.Sscanf(lines.Text(), "believes %s %t %d", &is.address, &is.ready, &nanos); n == 3 {
				is.at = time.Unix(0, nanos)
				believes <- is
			} else if name, value, ok := strings.Cut(lines.Text(), " = "); ok {
				figures[name], _ = strconv.ParseFloat(value, 64)
			}
		}
	})
	for range churnPods {
		<-believes
	}

	ready := make([]bool, churnPods)
	for i := range ready {
		ready[i] = true
	}
	began := make(map[string]time.Time) // start of each change that the fleet has not used yet, by the pod's address
	var took []time.Duration
	seen := func(is believed) {
		if at, waits := began[is.address]; waits {
			took = append(took, is.at.Sub(at))
			delete(began, is.address)
		}
	}
	pod := apiserver.ReadObjects(b, texts[len(texts)-1])[0]
	tick := time.NewTicker(churnEvery)
	defer tick.Stop()
	for b.Loop() {
		for waiting := true; waiting; {
			select {
			case is := <-believes:
				seen(is)
			case <-tick.C:
				waiting = false
			}
		}
		i := rand.IntN(churnPods)
		if _, waits := began[churnAddress(i)]; waits {
			continue
		}
		ready[i] = !ready[i]
		status := "False"
		if ready[i] {
			status = "True"
		}
		patch := fmt.Appendf(nil, `{"status": {"conditions": [{"type": "Ready", "status": %q}]}}`, status)
		began[churnAddress(i)] = time.Now()
		if _, err := objects.At(pod).Patch(b.Context(), fmt.Sprintf("e%d", i), types.StrategicMergePatchType, patch, metav1.PatchOptions{},
			"status"); err != nil {
			b.Fatal(err)
		}
	}
	for len(began) > 0 {
		seen(<-believes)
	}
	_ = end.Close()
	reading.Wait()
	if err := process.Wait(); err != nil {
		b.Fatal(err)
	}
	slices.Sort(took)
	milliseconds := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(milliseconds(took[len(took)/2]), "p50-ms")
	b.ReportMetric(milliseconds(took[len(took)*99/100]), "p99-ms")
	b.ReportMetric(milliseconds(took[len(took)-1]), "max-ms")
	for name, value := range figures {
		b.ReportMetric(value, name)
	}
}

// believed reports when the fleet changed its state of a pod.
type believed struct {
	address string
	ready   bool
	at      time.Time
}

// TestBeliever is the process that BenchmarkKubeChurn starts. Until its input ends, it prints each
// endpoint to which the fleet starts or stops sending requests.
func TestBeliever(t *testing.T) {
	if *believer == "" {
		t.Skip("BenchmarkKubeChurn starts it")
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		cancel()
	}()
	believed := make(map[string]bool)
	views := 0
	f := fleet.New(fleet.Config{Published: func(v *endpointstate.View) {
		now := time.Now().UnixNano()
		views++
		var news bytes.Buffer
		for _, p := range v.Snapshot.Pools {
			for _, e := range p.Endpoints {
				if ready := e.State != pick.Out; believed[e.Address] != ready {
					believed[e.Address] = ready
					address, _, _ := strings.Cut(e.Address, ":")
					fmt.Fprintf(&news, "believes %s %t %d\n", address, ready, now)
				}
			}
		}
		_, _ = os.Stdout.Write(news.Bytes())
	}})
	began := time.Now()
	s := source.Source{Kube: source.Kube{On: true, Config: *believer}}
	var running sync.WaitGroup
	running.Go(func() { _ = f.Run(ctx) })
	heard := make(map[string]bool)
	err := s.Follow(ctx, slog.New(slog.DiscardHandler), engineclient.NewTokens(nil), unheard{}, func(w *objects.World) {
		f.SetWorld(w)
		for _, address := range w.Addresses() { // as the scraper does: the fleet sends no requests to an endpoint that never answered
			if !heard[address] {
				heard[address] = true
				f.Scrape(address).Succeeded(engine.Load{})
			}
		}
	})
	running.Wait()
	if err != nil {
		t.Fatal(err)
	}
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		t.Fatal(err)
	}
	ran := time.Since(began).Seconds()
	fmt.Printf("views/s = %.1f\n%%cpu = %.1f\npeak-MB = %.0f\n", float64(views)/ran,
		100*time.Duration(used.Utime.Nano()+used.Stime.Nano()).Seconds()/ran, float64(used.Maxrss)/1000)
}

// unheard is a meter that ignores everything.
type unheard struct{}

func (unheard) Refused(int)   {}
func (unheard) Readable(bool) {}
