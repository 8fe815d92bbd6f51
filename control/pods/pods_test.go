package pods_test

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
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/headgate/headgate/control/attach/pki"
	"github.com/headgate/headgate/control/pods"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/apiserver"
)

// Several controls share one Secret and one EndpointSlice. The first control's Secret stays, and
// the EndpointSlice has the address that was announced last.
func TestControlsShareTheSecretAndTheEndpointSlice(t *testing.T) {
	server := apiserver.RunCluster(t)
	client, err := kubernetes.NewForConfig(server.Admin())
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	const namespace = "headgate-system"
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	control := func(address string) pods.Pod {
		return pods.Pod{Client: client, Namespace: namespace, Address: netip.MustParseAddr(address), Log: slog.New(slog.DiscardHandler)}
	}
	a, b := control("10.0.0.1"), control("10.0.0.2")

	dirs := []string{t.TempDir(), t.TempDir()}
	done := make(chan error)
	for i, c := range []pods.Pod{a, b} {
		go func() {
			token, mesh, err := c.Credentials(ctx, dirs[i])
			if token != filepath.Join(dirs[i], "token") || mesh != filepath.Join(dirs[i], "mesh-token") {
				t.Errorf("the tokens are in %q and %q", token, mesh)
			}
			done <- err
		}()
	}
	for range dirs {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"tls.crt", "tls.key", "token", "mesh-token"} {
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
	secret, err := client.CoreV1().Secrets(namespace).Get(ctx, pods.PlacementName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["ca.crt"])
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: "headgate-placement.headgate-system.svc"}); err != nil {
		t.Errorf("extprocs do not trust the certificate: %v", err)
	}

	// The controls share one authority for Envoys.
	authorities := make(chan *pki.Authority, 2)
	for _, c := range []pods.Pod{a, b} {
		go func() {
			is, err := c.Authority(ctx)
			authorities <- is
			done <- err
		}()
	}
	for range 2 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	one, other, gateway := <-authorities, <-authorities, objects.Name{Namespace: "ns", Name: "g"}
	certificate, _, err := one.Gateway(gateway, time.Now())
	if err != nil || !other.Fresh(certificate, gateway, time.Now()) {
		t.Errorf("one control does not accept a certificate of another: %v", err)
	}
	if _, err := client.CoreV1().Secrets(namespace).Update(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: pods.GatewaysName}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": {}, "tls.key": {}},
	}, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	broken, giveUp := context.WithCancel(ctx)
	defer giveUp()
	a.Log = slog.New(slog.NewTextHandler(lineWriter(func(line string) { logged.WriteString(line); giveUp() }), nil))
	if _, err := a.Authority(broken); err == nil || !strings.Contains(logged.String(), "delete it, and control makes another") {
		t.Errorf("for a Secret without an authority: %v, and the log is %s", err, logged.String())
	}

	leads := func(c pods.Pod, port uint16) {
		t.Helper()
		if err := c.AnnounceOnce(ctx, port); err != nil {
			t.Fatal(err)
		}
		slice, err := client.DiscoveryV1().EndpointSlices(namespace).Get(ctx, pods.PlacementName, metav1.GetOptions{})
		if err != nil || slice.Endpoints[0].Addresses[0] != c.Address.String() || *slice.Ports[0].Port != int32(port) ||
			slice.Labels["kubernetes.io/service-name"] != pods.PlacementName {
			t.Errorf("%v: the EndpointSlice is %+v", err, slice)
		}
	}
	leads(a, 8034)
	leads(b, 8034)
	before, _ := client.DiscoveryV1().EndpointSlices(namespace).Get(ctx, pods.PlacementName, metav1.GetOptions{})
	leads(b, 8034)
	if after, _ := client.DiscoveryV1().EndpointSlices(namespace).Get(ctx, pods.PlacementName,
		metav1.GetOptions{}); after.ResourceVersion != before.ResourceVersion {
		t.Error("an unchanged object is written again")
	}
	leads(a, 8034)
}

// lineWriter is called with each log line.
type lineWriter func(line string)

func (w lineWriter) Write(line []byte) (int, error) {
	w(string(line))
	return len(line), nil
}

// Control adds a missing token for ModelMesh's clients to a Secret, and keeps the rest. If control
// may not write the Secret, as with an older Role, it still serves extprocs.
func TestOldSecretGetsAToken(t *testing.T) {
	c := apiserver.RunCluster(t)
	admin, err := kubernetes.NewForConfig(c.Admin())
	if err != nil {
		t.Fatal(err)
	}
	const namespace = "default"
	before := map[string][]byte{"ca.crt": []byte("a"), "tls.crt": []byte("c"), "tls.key": []byte("k"), "token": []byte("t")}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: pods.PlacementName}, Data: before}
	if _, err := admin.CoreV1().Secrets(namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := func(user, verbs string) (pods.Pod, *strings.Builder) {
		client, err := kubernetes.NewForConfig(c.Allowed(user, `
- {apiGroups: [""], resources: [secrets], verbs: [create]}
- {apiGroups: [""], resources: [secrets], resourceNames: [headgate-placement], verbs: [`+verbs+`]}
`))
		if err != nil {
			t.Fatal(err)
		}
		logged := new(strings.Builder)
		return pods.Pod{Client: client, Namespace: namespace, Log: slog.New(slog.NewTextHandler(logged, nil))}, logged
	}

	earlier, logged := pod("earlier", "get")
	dir := t.TempDir()
	if _, mesh, err := earlier.Credentials(t.Context(), dir); err != nil || mesh != "" ||
		!strings.Contains(logged.String(), "cannot add a token to the Secret") ||
		!strings.Contains(logged.String(), "default/headgate-placement") {
		t.Errorf("without permission to write: %q, %v, and the log is %s", mesh, err, logged)
	}
	if token, err := os.ReadFile(filepath.Join(dir, "token")); err != nil || string(token) != "t" {
		t.Errorf("the token is %q, %v", token, err)
	}

	done := make(chan error)
	now, _ := pod("now", "get, update")
	dirs := []string{t.TempDir(), t.TempDir()}
	for _, dir := range dirs {
		go func() {
			_, mesh, err := now.Credentials(t.Context(), dir)
			if mesh == "" {
				t.Error("there is no token for clients of ModelMesh")
			}
			done <- err
		}()
	}
	for range dirs {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	is, err := admin.CoreV1().Secrets(namespace).Get(t.Context(), pods.PlacementName, metav1.GetOptions{})
	if err != nil || len(is.Data) != len(before)+1 || len(is.Data["mesh-token"]) < 20 {
		t.Fatalf("the Secret is %v, %v", is.Data, err)
	}
	for key, want := range before {
		if string(is.Data[key]) != string(want) {
			t.Errorf("%s is %s, before %s", key, is.Data[key], want)
		}
	}
	for _, dir := range dirs {
		if token, err := os.ReadFile(filepath.Join(dir, "mesh-token")); err != nil || !bytes.Equal(token, is.Data["mesh-token"]) {
			t.Errorf("the token is %q, %v", token, err)
		}
	}
}

// If a control starts before its API server, it waits for its credentials.
func TestControlWaitsForTheAPIServer(t *testing.T) {
	var asked atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if asked.Add(1) < 3 {
			http.Error(w, "etcd is not there", http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(corev1.Secret{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Name: pods.PlacementName},
			Data: map[string][]byte{
				"ca.crt": []byte("a"), "tls.crt": []byte("c"), "tls.key": []byte("k"), "token": []byte("t"),
				"mesh-token": []byte("m"),
			},
		})
	}))
	defer server.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host:          server.URL,
		ContentConfig: rest.ContentConfig{ContentType: "application/json"},
	})
	if err != nil {
		t.Fatal(err)
	}
	var logged strings.Builder
	c := pods.Pod{Client: client, Namespace: "default", Log: slog.New(slog.NewTextHandler(&logged, nil))}
	dir := t.TempDir()
	if _, _, err := c.Credentials(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if token, err := os.ReadFile(filepath.Join(dir, "token")); err != nil || string(token) != "t" {
		t.Errorf("the token is %q, %v", token, err)
	}
	if n := strings.Count(logged.String(), "\n"); n != 1 {
		t.Errorf("%d lines are logged: %s", n, logged.String())
	}
}
