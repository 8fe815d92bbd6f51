package routes_test

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate/control/attach/routes"
	"github.com/headgate/headgate/internal/listen"
	"github.com/headgate/headgate/test/apiserver"
	"github.com/headgate/headgate/test/golden"
)

// The input of a block is a command line. The output is what the command prints, or its error. The
// test adds a certificate to testdata/objects.
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		const objects = "testdata/objects"
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(objects)); err != nil {
			t.Fatal(err)
		}
		chain, key := certificate(t)
		write(t, dir, "cert.yaml", secret("default", "cert", chain, key))
		return func(input string) string {
			return strings.ReplaceAll(run(t, strings.ReplaceAll(input, objects, dir)), dir, objects)
		}
	})
}

// run returns the output of a command line, or its error.
func run(t *testing.T, line string) string {
	var out bytes.Buffer
	if err := routes.Command(t.Context(), words(line)[1:], &out); err != nil {
		return "error: " + err.Error() + "\n"
	}
	return out.String()
}

// certificate returns a certificate and its key in PEM.
func certificate(t *testing.T) (chain, key string) {
	t.Helper()
	c, err := listen.Certify(time.Now(), time.Hour, false, "one.test")
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	inPEM := func(kind string, der []byte) string {
		return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
	}
	return inPEM("CERTIFICATE", c.Certificate[0]), inPEM("PRIVATE KEY", private)
}

// secret is a Secret in YAML.
func secret(namespace, name, chain, key string) string {
	in64 := func(text string) string { return base64.StdEncoding.EncodeToString([]byte(text)) }
	return fmt.Sprintf("---\napiVersion: v1\nkind: Secret\nmetadata: {namespace: %s, name: %s}\ntype: kubernetes.io/tls\ndata: {tls.crt: %s, tls.key: %s}\n",
		namespace, name,
		in64(chain),
		in64(key))
}

func write(t *testing.T, dir, file, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

const gateway = `apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: headgate}
spec: {controllerName: headgate.dev/gateway-controller}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: g, namespace: default}
spec:
  gatewayClassName: headgate
  listeners:
  - {name: absent, port: 443, protocol: HTTPS, hostname: a.test, tls: {certificateRefs: [{name: absent}]}}
  - {name: bad, port: 443, protocol: HTTPS, hostname: b.test, tls: {certificateRefs: [{name: bad}]}}
  - {name: elsewhere, port: 443, protocol: HTTPS, hostname: c.test, tls: {certificateRefs: [{name: elsewhere}]}}
  - {name: good, port: 443, protocol: HTTPS, hostname: d.test, tls: {certificateRefs: [{name: good}]}}
`

// An error in a certificate of a folder names the file and line.
func TestCertificatesOfAFolderAreChecked(t *testing.T) {
	dir := t.TempDir()
	chain, key := certificate(t)
	_, another := certificate(t)
	write(t, dir, "gateway.yaml", gateway)
	write(t, dir, "certificates.yaml", secret("default", "good", chain, key)+secret("default", "bad", chain, another)+
		secret("other", "elsewhere", chain, key))
	const missing = "Gateway default/g, listener %[1]s: InvalidCertificateRef: Secret default/%[1]s: no file in the folder contains it: " +
		"create one with the output of kubectl create secret tls %[1]s --namespace default --cert FILE --key FILE --dry-run=client -o yaml\n"
	want := "Gateway default/g\n  port 443, HTTPS, listener Gateway default/g good, Secret default/good\n    host d.test\n" +
		fmt.Sprintf(missing, "absent") +
		"Gateway default/g, listener bad: InvalidCertificateRef: Secret default/bad: tls.key does not match the first certificate in tls.crt (" +
		filepath.Join(dir, "certificates.yaml") +
		":10)\n" +
		fmt.Sprintf(missing, "elsewhere")
	if diff := cmp.Diff(want, run(t, "routes --objects "+dir)); diff != "" {
		t.Errorf("the plan (-want +got):\n%s", diff)
	}
}

// Secrets of an API server are not read, and are treated as valid.
func TestCertificatesOfAnAPIServerCountAsValid(t *testing.T) {
	c := apiserver.RunGateways(t)
	c.Apply(gateway)
	got := run(t, "routes --kube --kubeconfig "+apiserver.KubeconfigFile(t, c.Admin()))
	if strings.Count(got, "  port 443, HTTPS, listener ") != 4 || strings.Contains(got, "InvalidCertificateRef") {
		t.Errorf("the plan is\n%s", got)
	}
}

// words splits a command line at spaces that are not in quotes.
func words(line string) (args []string) {
	for i, part := range strings.Split(strings.TrimSpace(line), "'") {
		if i%2 == 1 {
			args = append(args, part)
			continue
		}
		args = append(args, strings.Fields(part)...)
	}
	return args
}
