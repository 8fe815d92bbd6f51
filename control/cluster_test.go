package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/headgate/headgate/internal/apiserver"
)

// Several controls share one Secret and one EndpointSlice: the Secret of the first stays, and the Service leads to whom
// it was told last.
func TestControlsOfAClusterShareWhatExtprocsNeed(t *testing.T) {
	server := apiserver.Run(t)
	client, err := kubernetes.NewForConfig(server.Admin())
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	const namespace = "headgate-system"
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	control := func(pod, address string) cluster {
		return cluster{client: client, namespace: namespace, pod: pod, address: netip.MustParseAddr(address), log: slog.New(slog.DiscardHandler)}
	}
	a, b := control("a", "10.0.0.1"), control("b", "10.0.0.2")

	dirs := []string{t.TempDir(), t.TempDir()}
	done := make(chan error)
	for i, c := range []cluster{a, b} {
		go func() { done <- c.credentials(ctx, dirs[i]) }()
	}
	for range dirs {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"tls.crt", "tls.key", "token"} {
		one, err1 := os.ReadFile(filepath.Join(dirs[0], name))
		other, err2 := os.ReadFile(filepath.Join(dirs[1], name))
		if err1 != nil || err2 != nil || !bytes.Equal(one, other) || len(one) < 20 {
			t.Errorf("%s: %v, %v, %d and %d bytes", name, err1, err2, len(one), len(other))
		}
	}
	pair, err := tls.LoadX509KeyPair(filepath.Join(dirs[0], "tls.crt"), filepath.Join(dirs[0], "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	secret, err := client.CoreV1().Secrets(namespace).Get(ctx, placementName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["ca.crt"])
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "headgate-placement.headgate-system.svc"}); err != nil {
		t.Errorf("extprocs do not trust the certificate: %v", err)
	}

	leads := func(c cluster, port uint16) {
		t.Helper()
		if err := c.lead(ctx, port); err != nil {
			t.Fatal(err)
		}
		slice, err := client.DiscoveryV1().EndpointSlices(namespace).Get(ctx, placementName, metav1.GetOptions{})
		if err != nil || slice.Endpoints[0].Addresses[0] != c.address.String() || *slice.Ports[0].Port != int32(port) || slice.Labels["kubernetes.io/service-name"] != placementName {
			t.Errorf("%v: the Service leads to %+v", err, slice)
		}
	}
	leads(a, 8033)
	leads(b, 8033)
	before, _ := client.DiscoveryV1().EndpointSlices(namespace).Get(ctx, placementName, metav1.GetOptions{})
	leads(b, 8033)
	if after, _ := client.DiscoveryV1().EndpointSlices(namespace).Get(ctx, placementName, metav1.GetOptions{}); after.ResourceVersion != before.ResourceVersion {
		t.Error("it is written again though nothing changed")
	}
	leads(a, 8033)
}

// The Lease of a real API server moves from one control to the other.
func TestALeaseOfAnAPIServer(t *testing.T) {
	server := apiserver.Run(t)
	client, err := kubernetes.NewForConfig(server.Admin())
	if err != nil {
		t.Fatal(err)
	}
	c := cluster{client: client, namespace: "default", pod: "a", log: slog.New(slog.DiscardHandler)}
	for _, pod := range []string{"a", "b"} {
		c.pod = pod
		ctx, cancel := context.WithCancel(t.Context())
		begun := make(chan struct{})
		ended := make(chan error, 1)
		go func() {
			ended <- c.election().run(ctx, func(ctx context.Context, _ <-chan bool) error {
				close(begun)
				<-ctx.Done()
				return nil
			})
		}()
		<-begun
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		lease, err := client.CoordinationV1().Leases("default").Get(t.Context(), leaseName, metav1.GetOptions{})
		if err != nil || lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "" {
			t.Errorf("%v: after %s the Lease is %+v", err, pod, lease)
		}
	}
}

// A control may start before its API server does: what it shares with others it gets when that answers.
func TestAControlWaitsForTheAPIServer(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) < 3 {
			http.Error(w, "etcd is not there", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.Secret{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Name: placementName},
			Data: map[string][]byte{"ca.crt": []byte("a"), "tls.crt": []byte("c"), "tls.key": []byte("k"), "token": []byte("t")},
		})
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	c := cluster{client: client, namespace: "default", pod: "a", log: slog.New(slog.NewTextHandler(&logged, nil))}
	dir := t.TempDir()
	if err := c.credentials(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if token, err := os.ReadFile(filepath.Join(dir, "token")); err != nil || string(token) != "t" {
		t.Errorf("the token is %q, %v", token, err)
	}
	if n := strings.Count(logged.String(), "\n"); n != 1 {
		t.Errorf("%d lines are logged: %s", n, logged.String())
	}
}
