package apiserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// shared is the API server that the tests of a package use one after another while [Main] runs
// them.
var shared turns

type turns struct {
	mu     sync.Mutex // locked by the test that uses the server
	on     bool
	dir    string
	server *Server
	stages []contents // by stage that the server has reached: its contents then
}

// stage is what an API server contains when a test starts to use it.
type stage int

const (
	bare           stage = iota // only what the API server itself creates
	withCRDs                    // in addition: Headgate's CRDs
	withGatewayAPI              // in addition: the CRDs of Gateway API
)

// next brings a server from the previous stage to this one.
func (at stage) next(t testing.TB, s *Server) error {
	switch at {
	case bare:
		return s.awaitOwn(t.Context())
	case withCRDs:
		s.Objects(t).CRDs()
	case withGatewayAPI:
		s.Objects(t).GatewayAPI()
	}
	return nil
}

// Main runs the tests of a package and exits. A package that calls it in TestMain shares one API
// server among its tests. [Run], [RunCluster] and [RunGateways] pass the server from one test to
// the next, and delete what earlier tests created.
func Main(m *testing.M) {
	shared.on = true
	status := m.Run()
	shared.close()
	os.Exit(status)
}

// take returns the shared server at a stage. It locks the server until the test ends.
func (s *turns) take(t testing.TB, at stage) *Server {
	t.Helper()
	s.mu.Lock()
	t.Cleanup(s.mu.Unlock)
	if s.server != nil {
		if err := s.reset(t.Context(), at); err != nil {
			t.Logf("the shared API server is replaced: %v", err)
			s.close()
		}
	}
	if s.server == nil {
		s.start(t)
	}
	for next := stage(len(s.stages)); next <= at; next++ {
		if err := next.next(t, s.server); err != nil {
			t.Fatal(err)
		}
		reached, err := s.server.contents(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.stages = append(s.stages, reached)
	}
	server := s.server
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("kube-apiserver said last:\n%s", server.kube.LastWords())
		}
	})
	return server
}

func (s *turns) start(t testing.TB) {
	t.Helper()
	var err error
	if s.dir, err = os.MkdirTemp("", "headgate-apiserver-"); err != nil {
		t.Fatal(err)
	}
	s.server = start(t, Config{Dir: s.dir})
}

func (s *turns) close() {
	if s.server != nil {
		s.server.Close()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir) // an error does not matter: the folder is temporary
	}
	s.server, s.dir, s.stages = nil, "", nil
}

// reset deletes everything that does not belong to a stage. If the server has not reached that
// stage, reset restores the last stage that it has reached. After an error the server is unusable.
func (s *turns) reset(ctx context.Context, at stage) error {
	select {
	case <-s.server.Done(): // a test killed the server
		if err := s.server.Restart(ctx); err != nil {
			return err
		}
	default:
	}
	if len(s.stages) == 0 {
		return errors.New("its start failed")
	}
	s.stages = s.stages[:min(int(at)+1, len(s.stages))]
	return s.server.restore(ctx, s.stages[len(s.stages)-1])
}

// contents has the keys in etcd. The value of a CRD's key is its definition.
type contents map[string]definition

// definition is the state of a CRD: its spec, and whether it is being deleted.
type definition struct {
	spec    string // as JSON
	leaving bool   // the CRD is being deleted
}

// registry is the prefix of all keys of kube-apiserver.
const registry = "/registry/"

// crdKeys is the prefix of the keys of CRDs in etcd.
const crdKeys = registry + "apiextensions.k8s.io/customresourcedefinitions/"

// ownKeys are prefixes of the keys that the API server writes and removes by itself.
var ownKeys = []string{
	registry + "apiregistration.k8s.io/", registry + "flowschemas/", registry + "masterleases/", registry + "prioritylevelconfigurations/",
	registry + "ranges/", registry + "servicecidrs/",
}

// ownNamespaces are the namespaces that the API server creates, except default.
var ownNamespaces = []string{"kube-node-lease", "kube-public", "kube-system"}

// isOwn reports whether the API server writes and removes a key by itself.
func isOwn(key string) bool {
	if slices.ContainsFunc(ownKeys, func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
		return true
	}
	return slices.ContainsFunc(ownNamespaces, func(name string) bool {
		return strings.Contains(key, "/"+name+"/") || key == registry+"namespaces/"+name
	})
}

// awaitOwn waits until the API server has created its namespaces and its Service. It creates them
// after it has become ready.
func (s *Server) awaitOwn(ctx context.Context) error {
	want := []string{registry + "services/specs/default/kubernetes", registry + "namespaces/default"}
	for _, name := range ownNamespaces {
		want = append(want, registry+"namespaces/"+name)
	}
	return poll(ctx, "the API server has its namespaces", func() (bool, error) {
		keys, err := s.etcdKeys(ctx)
		return err == nil && !slices.ContainsFunc(want, func(key string) bool { return !slices.Contains(keys, key) }), err
	})
}

// contents returns what etcd stores now.
func (s *Server) contents(ctx context.Context) (contents, error) {
	keys, err := s.etcdKeys(ctx)
	if err != nil {
		return nil, err
	}
	all := make(contents, len(keys))
	for _, key := range keys {
		all[key] = definition{}
		if strings.HasPrefix(key, crdKeys) {
			if all[key], err = s.definition(ctx, key); err != nil {
				return nil, err
			}
		}
	}
	return all, nil
}

// restore deletes everything from etcd that is not in keep, without running finalizers. Then it
// waits until deleted CRDs are no longer served. It returns an error if a CRD in keep has changed.
func (s *Server) restore(ctx context.Context, keep contents) error {
	now, err := s.contents(ctx)
	if err != nil {
		return err
	}
	for key, crd := range keep {
		if now[key] != crd {
			return fmt.Errorf("a test changed the CRD %s", strings.TrimPrefix(key, crdKeys))
		}
	}
	var removed, crds []string
	var unserved []definition
	for key, crd := range now {
		switch _, kept := keep[key]; {
		case kept || isOwn(key):
		case strings.HasPrefix(key, crdKeys):
			crds, unserved = append(crds, key), append(unserved, crd)
		default:
			removed = append(removed, key)
		}
	}
	for _, key := range append(removed, crds...) { // delete objects before their CRDs
		if err := s.etcdDelete(ctx, key); err != nil {
			return err
		}
	}
	return s.awaitUnserved(ctx, unserved)
}

// awaitUnserved waits until the resources of deleted CRDs are no longer served.
func (s *Server) awaitUnserved(ctx context.Context, crds []definition) error {
	for _, crd := range crds {
		err := poll(ctx, "a removed CRD is no longer served", func() (bool, error) {
			served, err := s.serves(ctx, crd.spec)
			return err == nil && !served, err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// resetTimeout is the maximum time of each wait during a reset.
const resetTimeout = 20 * time.Second

// poll waits until holds returns true.
func poll(ctx context.Context, what string, holds func() (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, resetTimeout)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		ok, err := holds()
		if ok {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("it does not come true that %s", what), err)
		}
	}
}
