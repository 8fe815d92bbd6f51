package kube_test

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/kube"
	"github.com/headgate/headgate/internal/objects/source"
	"github.com/headgate/headgate/test/apiserver"
)

// lockedLog is a log that can be read while it is written.
type lockedLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lockedLog) count(words string) int { return strings.Count(l.String(), words) }

// secret is the YAML of a Secret in the namespace llm.
func secret(name, token string) string {
	return "apiVersion: v1\nkind: Secret\nmetadata: {name: " + name + ", namespace: llm}\nstringData: {token: " + token + "}\n"
}

// With the rights that the manifests grant: a token follows the Secret that a PoolSettings names,
// and stays when the Secret is gone. An unreadable Secret is logged with the missing Role, and
// nothing else is requested.
func TestTokenOfAPoolFollowsItsSecret(t *testing.T) {
	c := newCluster(t)
	c.ApplyFiles("manifests/base/namespace.yaml")
	c.In("headgate-system").ApplyFiles("manifests/base/*/rbac.yaml")
	inLLM := func(text string) string {
		return strings.Replace(text, "metadata: {", "metadata: {namespace: llm, ", 1)
	}
	naming := func(name string) string {
		return inLLM(settings("{poolRef: {name: p}, engineToken: {secretRef: {name: " + name + "}}}"))
	}
	c.Apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: llm}")
	c.Apply(inLLM(inferencePool("{"+base+"}")) + "\n---\n" + naming("qwen-token") + "\n---\n" + secret("qwen-token", "sk-1") + "---\n" +
		secret("other", "sk-other"))

	config, err := c.ServiceAccount(t.Context(), "headgate-system", "headgate-gateway")
	if err != nil {
		t.Fatal(err)
	}
	var log lockedLog
	tokens := engineclient.NewTokens(nil)
	s := source.Source{
		Kube:   source.Kube{On: true, Config: apiserver.KubeconfigFile(t, config)},
		ByName: func(n kube.Named) { n.Secrets.Interval = 200 * time.Millisecond },
	}
	ctx, cancel := context.WithCancel(t.Context())
	done, published := make(chan error, 1), make(chan string, 100) // for each World, its Secret and the token at that time
	go func() {
		logger := slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.Level(-100)}))
		done <- s.Follow(ctx, logger, tokens, new(followed), func(w *objects.World) {
			for _, is := range w.Secrets() {
				published <- is.Name.Name + " " + tokens.Of(is.Ref())
			}
		})
	}()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if strings.Contains(log.String(), "sk-") {
			t.Errorf("the log holds a token:\n%s", log.String())
		}
	}()

	if got := <-published; got != "qwen-token " {
		t.Errorf("without the right there is %q", got)
	}
	first := func(name string) string { // among the Worlds that name a Secret
		for {
			if got := <-published; strings.HasPrefix(got, name) {
				return got
			}
		}
	}
	c.Await("what lacks is told", func() bool {
		return log.count(`cannot read Secret llm/qwen-token, which PoolSettings llm/s names: secrets \"qwen-token\" is forbidden: User \"system:serviceaccount:headgate-system:headgate-gateway\"`) == 1 &&
			log.count("; give the service account headgate-gateway of the namespace headgate-system get on it with a Role in the namespace llm") == 1
	})
	if got := tokens.Of("llm/qwen-token/token"); got != "" {
		t.Errorf("without the right the token is %q", got)
	}
	c.ApplyFiles("manifests/examples/vllm-token/rbac.yaml")
	c.Await("with the right the token is there", func() bool { return tokens.Of("llm/qwen-token/token") == "sk-1" })
	c.Apply(secret("qwen-token", "sk-2"))
	c.Await("a new token is there", func() bool { return tokens.Of("llm/qwen-token/token") == "sk-2" })
	o := apiserver.ReadObjects(t, secret("qwen-token", ""))[0]
	if err := c.At(o).Delete(t.Context(), "qwen-token", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Await("it is told that it is gone", func() bool { return log.count("keeping the last good one") == 1 })
	if got := tokens.Of("llm/qwen-token/token"); got != "sk-2" {
		t.Errorf("the last good token is %q", got)
	}
	c.Apply(naming("other"))
	c.Await("another Secret that may not be read gives none", func() bool {
		return log.count("cannot read Secret llm/other, which PoolSettings llm/s names") == 1 && tokens.Of("llm/other/token") == "" &&
			tokens.Of("llm/qwen-token/token") == ""
	})

	// The token is available before the World that names it, so a pool's first scrape has it.
	if got := first("other"); got != "other " {
		t.Errorf("without the right there is %q", got)
	}
	c.Apply(secret("qwen-token", "sk-3") + "---\n" + naming("qwen-token"))
	if got := first("qwen-token"); got != "qwen-token sk-3" {
		t.Errorf("with its World there is %q", got)
	}

	requests := c.Requests()
	asked := make(map[string]bool)
	for _, r := range requests {
		if strings.HasPrefix(r.User.Name, "system:serviceaccount:headgate-system:") && r.Object.Resource == "secrets" {
			asked[r.Verb+" "+r.Object.Namespace+"/"+r.Object.Name] = true
		}
	}
	for what := range asked {
		if !slices.Contains([]string{"get llm/qwen-token", "get llm/other"}, what) {
			t.Errorf("it is asked to %s", what)
		}
	}
}
