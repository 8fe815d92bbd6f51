package envoy

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/headgate/headgate"
	"github.com/headgate/headgate/internal/listen"
)

func TestKeys(t *testing.T) {
	const secret = "s3cret-of-a-client"
	for name, c := range map[string]struct {
		text  string
		want  []key
		fault string
	}{
		"clients": {
			text: "# a comment = yes\n\nalice = " + secret + "\r\nbob-2.x=a=b\nalice=second\n",
			want: []key{{"alice", secret}, {"bob-2.x", "a=b"}, {"alice", "second"}},
		},
		"no =":             {text: "alice=1\n" + secret + "\n", fault: "keys:2: the line must be NAME=KEY"},
		"no name":          {text: "=" + secret, fault: "keys:1: the name before ="},
		"a name with a :":  {text: "a:b=" + secret, fault: "keys:1: the name before ="},
		"no key":           {text: "\n\nalice=", fault: "keys:3: there is no key after ="},
		"a space":          {text: "alice=" + secret + " x", fault: "keys:1: the key has a character that a header cannot have"},
		"no ASCII":         {text: "alice=" + secret + "é", fault: "keys:1: the key has a character that a header cannot have"},
		"a long key":       {text: "alice=" + strings.Repeat("x", 4097), fault: "keys:1: the key has more than 4096 characters"},
		"the same twice":   {text: "alice=" + secret + "\nbob=" + secret, fault: "keys:2: the key is the same as in line 1"},
		"nothing":          {text: "", fault: "keys: it has no line NAME=KEY"},
		"only a comment":   {text: "# x\n", fault: "keys: it has no line NAME=KEY"},
		"a name of 65":     {text: strings.Repeat("x", 65) + "=" + secret, fault: "keys:1: the name before ="},
		"a line feed only": {text: "alice=" + secret + "\vx", fault: "keys:1: the key has a character"},
	} {
		got, err := readKeys("keys", []byte(c.text))
		switch {
		case c.fault == "" && (err != nil || !slices.Equal(got, c.want)):
			t.Errorf("%s: %v, %v", name, got, err)
		case c.fault != "" && (err == nil || !strings.HasPrefix(err.Error(), c.fault) || strings.Contains(err.Error(), secret)):
			t.Errorf("%s: %v, want %s… without the key", name, err, c.fault)
		}
	}
}

// pair returns a self-signed certificate and its key as PEM.
func pair(t *testing.T) (cert, private []byte) {
	t.Helper()
	made, err := listen.SelfSigned(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(made.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: made.Certificate[0]}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
}

// Envoy gets changed files when they are valid and have not changed since the last look.
func TestChangedFilesCountWhenTheyAreValid(t *testing.T) {
	dir := t.TempDir()
	o := options{keys: filepath.Join(dir, "keys"), dir: dir}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(o.keys, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	target := filepath.Join(dir, keysFile)
	inForce := func() string {
		t.Helper()
		text, err := os.ReadFile(target)
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Resources []struct {
				Config struct {
					Credentials []struct{ Key, Client string }
				} `json:"typed_config"`
			}
		}
		if err := json.Unmarshal(text, &file); err != nil || len(file.Resources) != 1 {
			t.Fatalf("%s: %v", text, err)
		}
		var all []string
		for _, c := range file.Resources[0].Config.Credentials {
			all = append(all, c.Client+"="+c.Key)
		}
		return strings.Join(all, " ")
	}
	var lines bytes.Buffer
	log := slog.New(slog.NewTextHandler(&lines, nil))
	source := o.sources()[0]

	if err := source.load(); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without the file: %v", err)
	}
	write("alice 1")
	if err := source.load(); err == nil || !strings.Contains(err.Error(), "keys:1: the line must be NAME=KEY") {
		t.Errorf("with an invalid file: %v", err)
	}
	write("alice=1")
	if err := source.load(); err != nil || inForce() != "alice=1" {
		t.Fatalf("%s, %v", inForce(), err)
	}
	if info, err := os.Stat(target); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("other users can read the keys: %v, %v", info.Mode(), err)
	}
	for i, c := range []struct{ write, want, log string }{
		{"", "alice=1", ""},
		{"alice=1\nb", "alice=1", ""},              // half of it is written
		{"alice=1\nbob=2", "alice=1", ""},          // all of it, just now
		{"", "alice=1 bob=2", "changed files"},     // it was the same twice
		{"", "alice=1 bob=2", ""},                  //
		{"alice=secret x", "alice=1 bob=2", ""},    //
		{"", "alice=1 bob=2", "keys:1: the key"},   // invalid
		{"", "alice=1 bob=2", ""},                  // logged once
		{"alice=3", "alice=1 bob=2", ""},           //
		{"", "alice=3", "changed files"},           //
		{"alice=secret x", "alice=3", ""},          //
		{"", "alice=3", "keys:1: the key"},         // the same fault again
		{"gone", "alice=3", "no such file"},        //
		{"alice=secret x", "alice=3", ""},          //
		{"alice=4", "alice=3", ""},                 //
		{"", "alice=4", "changed files"},           //
		{"alice=4", "alice=4", ""},                 // written again
		{"unwritable", "alice=4", ""},              //
		{"", "alice=4", "not empty"},               // the target cannot be written
		{"writable", "alice=5", "changed files"},   // it is tried again
		{"alice=5 ", "alice=5", ""},                //
		{"", "alice=5", "Envoy gets the changed"},  //
		{"# only\n", "alice=5", ""},                //
		{"", "alice=5", "it has no line NAME=KEY"}, //
	} {
		switch c.write {
		case "":
		case "gone":
			if err := os.Remove(o.keys); err != nil {
				t.Fatal(err)
			}
		case "unwritable": // there is a folder where the file is written
			write("alice=5")
			if err := os.MkdirAll(target+".part/x", 0o700); err != nil {
				t.Fatal(err)
			}
		case "writable":
			if err := os.RemoveAll(target + ".part"); err != nil {
				t.Fatal(err)
			}
		default:
			write(c.write)
		}
		lines.Reset()
		source.look(log)
		if got := inForce(); got != c.want || (c.log == "") != (lines.Len() == 0) || !strings.Contains(lines.String(), c.log) {
			t.Errorf("%d: %q is in force, want %q; the log is %q, want %q", i, got, c.want, lines.String(), c.log)
		}
		if strings.Contains(lines.String(), "secret") {
			t.Errorf("%d: the log has a key: %s", i, lines.String())
		}
	}
}

func TestCertificateMustFitItsKey(t *testing.T) {
	cert, private := pair(t)
	_, another := pair(t)
	if _, err := secretResource(cert, another); err == nil {
		t.Error("the key of another certificate is accepted")
	}
	text, err := secretResource(cert, private)
	if err != nil || !bytes.Contains(text, []byte(`BEGIN CERTIFICATE`)) {
		t.Errorf("%s, %v", text, err)
	}
}

// Envoy 1.40 rejects these keys, and then serves without a certificate, or with an old one.
func TestCertificateThatEnvoyRejects(t *testing.T) {
	t.Setenv("GODEBUG", "rsa1024min=0")
	small, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	large, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	curve := func(c elliptic.Curve) crypto.Signer {
		key, err := ecdsa.GenerateKey(c, rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	for _, c := range []struct {
		name string
		key  crypto.Signer
		want string
	}{
		{"RSA 1024", small, "the RSA key has 1024 bits, and Envoy needs 2048"},
		{"RSA 2048", large, ""},
		{"P-224", curve(elliptic.P224()), "the key is on the curve P-224"},
		{"P-256", curve(elliptic.P256()), ""},
	} {
		template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
		cert, err := x509.CreateCertificate(rand.Reader, template, template, c.key.Public(), c.key)
		if err != nil {
			t.Fatal(err)
		}
		private, err := x509.MarshalPKCS8PrivateKey(c.key)
		if err != nil {
			t.Fatal(err)
		}
		_, err = secretResource(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}),
			pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// An error is logged if Envoy rejects a change. Earlier rejections do not count.
func TestRejectedChangeIsLogged(t *testing.T) {
	dir := t.TempDir()
	o := options{keys: filepath.Join(dir, "keys"), dir: dir}
	count := 3 // earlier ones
	source := o.sources()[0]
	source.rejected = func() int { return count }
	var lines bytes.Buffer
	log := slog.New(slog.NewTextHandler(&lines, nil))
	change := func(text string, rejects int) string {
		t.Helper()
		if err := os.WriteFile(o.keys, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		lines.Reset()
		source.look(log)
		source.look(log)
		count += rejects
		source.look(log)
		source.look(log)
		return lines.String()
	}
	if log := change("alice=1", 0); !strings.Contains(log, "changed files") || strings.Contains(log, "rejects") {
		t.Errorf("an accepted change: %s", log)
	}
	if log := change("alice=2", 1); strings.Count(log, "Envoy rejects the changed files") != 1 {
		t.Errorf("a rejected change: %s", log)
	}
}

// A folder that others can write is refused, since they could read or replace the keys. So is a
// file of another user at the path of a file with keys.
func TestFolderOfOthersIsRefused(t *testing.T) {
	dir := t.TempDir()
	for i, c := range []struct {
		make func(path string) error
		want string
	}{
		{func(string) error { return nil }, ""},
		{func(path string) error { return os.Mkdir(path, 0o755) }, ""},
		{func(path string) error { return errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, 0o777)) }, "other users can write to it"},
		{func(path string) error { return errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, 0o720)) }, "other users can write to it"},
		{func(path string) error { return os.Symlink(dir, path) }, "it is not a folder"},
		{func(path string) error { return os.WriteFile(path, nil, 0o600) }, "not a directory"},
		{func(path string) error { return errors.Join(os.Mkdir(path, 0o700), os.Chown(path, 1, 1)) }, "it belongs to the user with the id 1"},
	} {
		path := filepath.Join(dir, strconv.Itoa(i))
		if err := c.make(path); errors.Is(err, os.ErrPermission) {
			continue // only root can give a folder away
		} else if err != nil {
			t.Fatal(err)
		}
		err := privateDir(path)
		if (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%d: %v, want %q", i, err, c.want)
		}
	}
}

// at returns a value of a configuration.
func at(t *testing.T, config []byte, path ...any) any {
	t.Helper()
	var root any
	if err := json.Unmarshal(config, &root); err != nil {
		t.Fatal(err)
	}
	for _, p := range path {
		switch p := p.(type) {
		case string:
			root = object(root)[p]
		case int:
			l, _ := root.([]any)
			if p >= len(l) {
				return nil
			}
			root = l[p]
		}
	}
	return root
}

func TestAddresses(t *testing.T) {
	o := options{listen: []string{"127.9.8.7:1234", "[::1]:1235"}, extproc: "unix:/run/x/extproc.sock", dir: "/run/x/envoy"}
	config, err := o.bootstrap()
	if err != nil {
		t.Fatal(err)
	}
	front := []any{"static_resources", "listeners", 0}
	for _, c := range []struct {
		path []any
		want any
	}{
		{append(front, "address", "socket_address", "port_value"), 1234.0},
		{append(front, "additional_addresses", 0, "address", "socket_address", "address"), "::1"},
		{append(front, "additional_addresses", 1), nil},
		{append(front, "filter_chains", 0, "transport_socket"), nil},
		{[]any{"static_resources", "listeners", 1, "address", "pipe", "path"}, "/run/x/back.sock"},
		{[]any{"admin", "address", "pipe", "path"}, "/run/x/envoy/admin.sock"},
	} {
		if diff := cmp.Diff(c.want, at(t, config, c.path...)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", c.path, diff)
		}
	}
	if !bytes.Contains(config, []byte(`/run/x/extproc.sock`)) || !bytes.Contains(config, []byte(`{"key":"x-gateway-back","value":"back.sock"}`)) {
		t.Error("extproc is not at its socket, or does not learn of the socket for its relay")
	}
	if bytes.Contains(config, []byte(".run/")) {
		t.Error("a relative path is left")
	}

	o.extproc = "extproc.internal:9002" // without a socket there is no relay
	if config, err = o.bootstrap(); err != nil {
		t.Fatal(err)
	}
	if at(t, config, "static_resources", "listeners", 1) != nil || bytes.Contains(config, []byte("x-gateway-back")) ||
		!bytes.Contains(config, []byte(`"STRICT_DNS"`)) {
		t.Error("there is a relay without a socket, or the host's name is not resolved")
	}
	for _, o := range []options{
		{listen: []string{"8080"}, extproc: "unix:/x"},
		{listen: []string{"127.0.0.1:0"}, extproc: "unix:/x"},
		{listen: []string{"127.0.0.1:1"}, extproc: "x"},
		{listen: []string{"127.0.0.1:1"}, extproc: "unix:/x", config: "envoy_test.go"},
		{listen: []string{"127.0.0.1:1"}, extproc: "unix:/x", config: "no such file"},
	} {
		if _, err := o.bootstrap(); err == nil {
			t.Errorf("%+v is accepted", o)
		}
	}
}

// The name of a client goes on, but none that a client sends. A request that the relay sends again
// needs no key and keeps its client.
func TestOnlyTheListenerForClientsAsksForKeys(t *testing.T) {
	for _, keys := range []string{"", "keys"} {
		o := options{listen: []string{"127.0.0.1:1"}, extproc: "unix:/x/y", dir: "/x", keys: keys}
		config, err := o.bootstrap()
		if err != nil {
			t.Fatal(err)
		}
		for i, name := range []string{"for clients", "for the relay"} {
			l, err := json.Marshal(at(t, config, "static_resources", "listeners", i))
			if err != nil {
				t.Fatal(err)
			}
			forClients := i == 0
			if got := bytes.Contains(l, []byte(`"name":"api_keys"`)); got != (forClients && keys != "") {
				t.Errorf("keys %q: the listener %s asks for a key: %v", keys, name, got)
			}
			if got := bytes.Contains(l, []byte(`{"remove":"x-headgate-client"}`)); got != forClients {
				t.Errorf("keys %q: the listener %s removes the client's name: %v", keys, name, got)
			}
			if got := bytes.Contains(l, []byte(`"client":"%REQ(x-headgate-client):64%"`)); got != (keys != "" || !forClients) {
				t.Errorf("keys %q: the listener %s logs the client's name: %v", keys, name, got)
			}
		}
	}
	if !bytes.Contains(headgate.EnvoyYAML, []byte("- remove: x-headgate-client")) {
		t.Error("envoy.yaml lets clients send the name of a client")
	}
}

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "--extproc is needed"},
		{[]string{"--extproc", "unix:x", "--tls-cert", "x"}, "set both"},
		{[]string{"--extproc", "unix:x", "--drain-time", "-1s"}, "--drain-time must not be negative"},
		{[]string{"--extproc", "unix:x", "--concurrency", "0"}, "--concurrency must be at least 1"},
		{[]string{"--extproc", "unix:x", "--envoy-log-level", "loud"}, "the levels are trace, debug, info"},
		{[]string{"--extproc", "unix:x", "--api-keys", "x", "--envoy-log-level", "trace"}, "use info or a higher level"},
		{[]string{"--extproc", "unix:x", "--api-keys", "x", "--envoy-log-level", "debug"}, "use info or a higher level"},
		{[]string{"--extproc", "unix:x", "y"}, `unexpected argument "y"`},
		{[]string{"--extproc", "unix:/" + strings.Repeat("x", 80) + "/y"}, "the path may have"},
	} {
		if err := Command(t.Context(), c.args, &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %s", c.args, err, c.want)
		}
	}
}

func TestActiveRequests(t *testing.T) {
	requests, connections := sumActive([]byte("http.admin.downstream_rq_active: 1\nhttp.ingress.downstream_cx_active: 5\nhttp.ingress.downstream_rq_active: 2\n" +
		"http.other.downstream_rq_active: 3\nhttp.admin.downstream_cx_active: 9\n"))
	if requests != 5 || connections != 5 {
		t.Errorf("%d requests, %d connections", requests, connections)
	}
}
