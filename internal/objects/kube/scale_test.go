package kube_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/source"
	"github.com/headgate/headgate/test/apiserver"
)

var (
	scale = flag.Bool("scale", false, "follow 10,000 pods and 1,000 routes, and print what that takes")
	alone = flag.String("alone", "", "what -scale starts: follow the API server of this kubeconfig in a process of its own")
)

// populate creates pools that share pods and routes equally; pods are as large as those of real
// engines.
func (c cluster) populate(pools, pods, routes int) {
	c.Helper()
	var texts []string
	for i := range pools {
		texts = append(texts, strings.NewReplacer("name: p}", fmt.Sprintf("name: p%d}", i), "app: llama",
			fmt.Sprintf("app: p%d", i)).Replace(inferencePool("{"+base+"}")))
	}
	for i := range routes {
		texts = append(texts, strings.Replace(
			route(fmt.Sprintf("{backendRefs: [{name: p%d}], modelNames: [m%d], adapter: {name: a%[2]d}}", i%pools, i)), "name: r}",
			fmt.Sprintf("name: r%d}", i), 1))
	}
	for i := range pods {
		texts = append(texts, engine(i, pools))
	}
	work := make(chan string)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for text := range work {
				o := apiserver.ReadObjects(c, text)[0]
				made := o.DeepCopy()
				_, err := c.At(o).Create(c.Context(), made, metav1.CreateOptions{})
				if err == nil && o.Object["status"] != nil {
					status := map[string]any{"status": o.Object["status"]}
					var patch []byte
					if patch, err = json.Marshal(status); err == nil {
						_, err = c.At(o).Patch(c.Context(), o.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status")
					}
				}
				if err != nil {
					c.Error(err)
				}
			}
		})
	}
	for _, text := range texts {
		work <- text
	}
	close(work)
	workers.Wait()
}

// address is the address of pod i.
func address(i int) string { return fmt.Sprintf("10.%d.%d.%d", i/65536, i/256%256, i%256) }

// engine is pod i, of some 5 KB.
func engine(i, pools int) string {
	text := strings.NewReplacer("app: llama",
		fmt.Sprintf("app: p%d, pod-template-hash: 5f6d8c7b9, app.kubernetes.io/name: vllm, topology.kubernetes.io/zone: zone-%d",
			i%pools, i%3)).
		Replace(pod(fmt.Sprintf("engine-%d", i), address(i), "True"))
	var env strings.Builder
	for n := range 40 {
		fmt.Fprintf(&env, "{name: VARIABLE_%d, value: %q}, ", n, strings.Repeat("v", 40))
	}
	return strings.Replace(text, "image: none}", "image: none, env: ["+env.String()+"]}", 1)
}

// cpu is the CPU time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail for this process
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestScale limits the cost of following 10,000 pods and 1,000 routes: 300 MB, and 5 s for all of
// it.
func TestScale(t *testing.T) {
	if !*scale {
		t.Skip("-scale starts it")
	}
	c := newCluster(t)
	begun := time.Now()
	c.populate(50, 10_000, 1000)
	t.Logf("10,000 pods and 1,000 routes are made in %v", time.Since(begun).Round(time.Second))
	config := apiserver.KubeconfigFile(t, c.Admin())
	for range 3 {
		out, err := exec.Command(os.Args[0], "-test.run", "^TestScaleProcess$", "-test.v", "-alone", config).CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		said := numbers(string(out))
		t.Logf("in a process of its own: %v", said)
		if said["seconds"] > 5 || said["peak MB"] > 300 {
			t.Errorf("it takes %v s and %v MB, want 5 s and 300 MB at most", said["seconds"], said["peak MB"])
		}
	}
}

// numbers parses lines "name = number".
func numbers(text string) map[string]float64 {
	all := make(map[string]float64)
	for line := range strings.Lines(text) {
		name, value, ok := strings.Cut(line, " = ")
		if n, err := strconv.ParseFloat(strings.TrimSpace(value), 64); ok && err == nil {
			all[name] = n
		}
	}
	return all
}

// TestScaleProcess is the process that TestScale starts.
func TestScaleProcess(t *testing.T) {
	if *alone == "" {
		t.Skip("TestScale starts it")
	}
	ctx, cancel := context.WithCancel(t.Context())
	begun := time.Now()
	var world *objects.World
	s := source.Source{Kube: source.Kube{On: true, Config: *alone}}
	err := s.Follow(ctx, slog.New(slog.DiscardHandler), engineclient.NewTokens(nil), new(followed), func(w *objects.World) {
		if world = w; len(w.Addresses()) > 0 {
			fmt.Printf("seconds = %.2f\n", time.Since(begun).Seconds())
			cancel()
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("pods = %d\nroutes = %d\nCPU seconds = %.2f\n", len(world.Addresses()), len(world.Routes), cpu().Seconds())
	fmt.Printf("peak MB = %.0f\n", memory(t, "VmHWM"))
}

// memory is a memory figure of this process in MB.
func memory(t *testing.T, which string) float64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("only Linux tells")
	}
	for line := range bytes.Lines(text) {
		if fields := strings.Fields(string(line)); len(fields) == 3 && fields[0] == which+":" {
			kb, _ := strconv.ParseFloat(fields[1], 64)
			return kb * 1024 / 1e6
		}
	}
	return 0
}
