package apiserver

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// buildTimeout bounds the build of both programs on a slow machine.
const buildTimeout = 30 * time.Minute

// Run starts an API server for a test and closes it with the test. In a package that calls [Main], a test that gives no
// flags gets the API server that the package's tests share. Run builds the programs the first time; where that is not
// possible the test fails. Short runs leave the test out. Flags go to kube-apiserver.
func Run(t testing.TB, flags ...string) *Server {
	t.Helper()
	return run(t, bare, flags)
}

// run returns a server at a stage.
func run(t testing.TB, at stage, flags []string) *Server {
	t.Helper()
	skipShort(t)
	if len(flags) == 0 && shared.on {
		return shared.take(t, at)
	}
	s := RunWith(t, Config{Flags: flags})
	for next := withCRDs; next <= at; next++ {
		if err := next.next(t, s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// RunWith starts an API server with a configuration, in which Binaries, Dir and Address have defaults.
func RunWith(t testing.TB, c Config) *Server {
	t.Helper()
	skipShort(t)
	if c.Dir == "" {
		c.Dir = t.TempDir()
	}
	s := start(t, c)
	t.Cleanup(func() {
		s.Close()
		if t.Failed() {
			t.Logf("kube-apiserver said last:\n%s", s.kube.LastWords())
		}
	})
	return s
}

func skipShort(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("short runs start no API server")
	}
}

// start starts an API server, which the caller closes.
func start(t testing.TB, c Config) *Server {
	t.Helper()
	if c.Binaries == "" {
		root, err := Root(".")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), buildTimeout)
		defer cancel()
		if c.Binaries, err = Build(ctx, root, os.Stderr, "etcd", "kube-apiserver"); err != nil {
			t.Fatal(err)
		}
	}
	if c.Address == "" {
		c.Address = someAddress(t)
	}
	// No controller creates the service accounts that this plugin asks for.
	c.Flags = append([]string{"--disable-admission-plugins", "ServiceAccount"}, c.Flags...)
	s, err := Start(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// someAddress is a loopback address at which nobody serves: tests run beside each other, and so may whole runs.
func someAddress(t testing.TB) string {
	t.Helper()
	var err error
	for range 10 {
		address := fmt.Sprintf("127.%d.%d.%d", 192+rand.IntN(60), rand.IntN(256), 1+rand.IntN(254))
		if err = free(address); err == nil {
			return address
		}
	}
	t.Fatal(err)
	return ""
}

// KubeconfigFile is Kubeconfig for a program that is given a file, which goes with the test.
func KubeconfigFile(t testing.TB, c *rest.Config) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "kubeconfig")
	text, err := Kubeconfig(c)
	if err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}
