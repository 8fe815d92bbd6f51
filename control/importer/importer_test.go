package importer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/headgate/headgate/api/v1alpha1"
	"github.com/headgate/headgate/control/importer"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/dir"
	"github.com/headgate/headgate/internal/objects/kinds"
	"github.com/headgate/headgate/test/apiserver"
)

// service is the prefix of a ModelMesh service, as modelmesh-serving sets it.
const service = "/modelmesh-serving/mm/modelmesh-serving"

// records are keys and values as ModelMesh writes them: without fields that have their default.
func records() map[string]string {
	isvc := func(id string) string {
		return `{"type":"mt:sklearn","encKey":"{\"storage_key\":\"localMinIO\",\"model_type\":{\"name\":\"sklearn\"}}","mPath":"` + id +
			`","instanceIds":{"5f6b9c-x8zpq":1764000000000},"refs":1,"autoDel":true,"lu":1764000001000}`
	}
	return map[string]string{
		service + "/registry/plain":                  `{"type":"rt:custom","encKey":"opaque","mPath":"/models/plain","lu":1764000001000}`,
		service + "/registry/org/Model v1":           `{"type":"rt:custom","mPath":"s3://bucket/v1","refs":1,"autoDel":true,"failedIn":{"a":1},"fails":{"a":{"msg":"no"}}}`,
		service + "/registry/模型":                     `{"mPath":"old"}`,
		service + "/registry/Model_2":                `{"type":"rt:custom","mPath":"x"}`,
		service + "/vmodels/alias":                   `{"amid":"org/Model v1","tmid":"org/Model v1"}`,
		service + "/vmodels/owned":                   `{"o":"team","amid":"plain","tmid":"Model_2"}`,
		service + "/vmodels/stuck":                   `{"amid":"plain","tmid":"Model_2","failed":true}`,
		service + "/registry/mnist__isvc-0123456789": isvc("mnist"),
		service + "/registry/gone__isvc-abcdef0123":  isvc("gone"),
		service + "/vmodels/mnist":                   `{"o":"isvc","amid":"mnist__isvc-0123456789","tmid":"mnist__isvc-0123456789"}`,
		service + "/instances/5f6b9c-x8zpq":          `{"lruTime":9223372036854775807,"cap":1000}`,
		service + "/leaderLatch/5f6b9c-x8zpq":        ``,
		service + "/config/scaleup_rpm_threshold":    `2000`,
	}
}

// bad are records that cannot be taken over.
func bad() map[string]string {
	return map[string]string{
		service + "/registry/../escape":    `{"type":"t","encKey":"hunter2"}`,
		service + "/registry/broken":       `{"type":"t","encKey":"hunter2"`,
		service + "/registry/numbered":     `{"type":1}`,
		service + "/vmodels/dangling":      `{"amid":"absent","tmid":"absent"}`,
		service + "/vmodels/plain":         `{"amid":"plain","tmid":"plain"}`,
		service + "/vmodels/without":       `{}`,
		service + "/vmodels/of the broken": `{"amid":"broken","tmid":"broken"}`,
	}
}

// dumpOf is the output of etcdctl get --prefix / -w json.
func dumpOf(t *testing.T, all map[string]string) string {
	t.Helper()
	type pair struct {
		Key   []byte `json:"key"`
		Value []byte `json:"value"`
	}
	pairs := []pair{}
	for _, key := range slices.Sorted(maps.Keys(all)) {
		pairs = append(pairs, pair{[]byte(key), []byte(all[key])})
	}
	text, err := json.Marshal(map[string]any{"header": map[string]int{"revision": 7}, "kvs": pairs, "count": len(pairs)})
	if err != nil {
		t.Fatal(err)
	}
	return write(t, string(text))
}

func write(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// run runs the command.
func run(t *testing.T, args ...string) (out, faults string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	err = importer.Command(t.Context(), args, &stdout, &stderr)
	return stdout.String(), stderr.String(), err
}

// apply reads printed objects from a folder with the pool, as control does.
func apply(t *testing.T, printed string) *objects.World {
	t.Helper()
	const runtimes = `apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: { name: runtimes }
spec: { selector: { matchLabels: { app: runtimes } }, targetPorts: [{ number: 8000 }] }
`
	at := t.TempDir()
	for name, text := range map[string]string{"pool.yaml": runtimes, "models.yaml": printed} {
		if err := os.WriteFile(filepath.Join(at, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set, err := dir.Read(at, kinds.All())
	if err != nil {
		t.Fatalf("the printed objects do not apply: %v\n%s", err, printed)
	}
	return objects.Build(set)
}

// show returns the models and VModels of a World as text, and fails if a request for one of them
// does not lead to the pool.
func show(t *testing.T, w *objects.World) string {
	t.Helper()
	if len(w.Problems) > 0 {
		t.Errorf("the objects have problems: %q", w.Problems)
	}
	pool := objects.Name{Namespace: "default", Name: "runtimes"}
	var all []string
	resolves := func(id string) {
		if r := w.Route(id); r == nil || !r.LeadsTo(pool) {
			t.Errorf("requests for %q lead nowhere", id)
		}
	}
	for _, e := range w.Catalogue {
		resolves(e.ID)
		all = append(all, strings.TrimSuffix(fmt.Sprintf("%s %s %s %q %s", e.Object.Name, e.ID, e.Type, e.Source, e.Info), " "))
	}
	for _, v := range w.VModels {
		resolves(v.ID)
		if _, there := w.Entry(objects.ModelKey{Pool: pool, ID: v.Target}); !there {
			t.Errorf("the target of VModel %q is no model", v.ID)
		}
		all = append(all, fmt.Sprintf("%s %s -> %s of %q", v.Object.Name, v.ID, v.Target, v.Owner))
	}
	return strings.Join(all, "\n")
}

// The registry in a real etcd becomes objects that apply, and every id resolves.
func TestRegistryInEtcdBecomesObjects(t *testing.T) {
	t.Parallel()
	url := apiserver.RunEtcd(t)
	client := connect(t, url)
	all := records()
	all["/modelmesh-serving/mm_ns/other/mm/modelmesh-serving/registry/foreign"] = `{"type":"t"}`
	all["/elsewhere/mm/modelmesh-serving/registry/foreign"] = `{"type":"t"}`
	for i := range 1200 { // more than a page
		all[fmt.Sprintf("%s/registry/many-%04d", service, i)] = `{"type":"rt:custom"}`
	}
	for key, value := range all {
		if _, err := client.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	config := write(t, `{"endpoints": "`+url+`", "root_prefix": "/modelmesh-serving"}`)
	_, _, err := run(t, "--etcd", config, "--pool", "runtimes")
	if err == nil || !strings.Contains(err.Error(), "  --prefix "+service+"/ ") ||
		!strings.Contains(err.Error(), "  --prefix /modelmesh-serving/mm_ns/other/mm/modelmesh-serving/ ") {
		t.Errorf("of two services: %v", err)
	}
	// A user with a password may read only what ModelMesh reads.
	secure(t, client)
	config = write(t, `{"endpoints": "`+url+`", "userid": "reader", "password": "secret", "root_prefix": "/modelmesh-serving"}`)
	printed, faults, err := run(t, "--etcd", config, "--prefix", "/modelmesh-serving/mm/", "--pool", "runtimes", "--skip-owner", "isvc")
	if err != nil || faults != "" {
		t.Fatalf("%v, %s", err, faults)
	}
	w := apply(t, printed)
	got := show(t, w)
	if n := strings.Count(got, "\nmany-"); n != 1200 {
		t.Errorf("of 1200 models %d are taken over", n)
	}
	if want := "alias alias -> org/Model v1 of \"\""; !strings.Contains(got, want) || strings.Contains(got, "isvc") {
		t.Errorf("the models are\n%s\nwant %s", got, want)
	}
	config = write(t, `{"endpoints": "`+url+`", "userid": "reader", "password": "hunter2"}`)
	if _, _, err := run(t, "--etcd", config, "--pool", "runtimes"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("with a wrong password: %v", err)
	}
}

// An etcd that requires TLS and a client's certificate is read with the files that its
// configuration names, and not without them.
func TestEtcdWithTLS(t *testing.T) {
	t.Parallel()
	url, folder := apiserver.RunSecureEtcd(t)
	config := filepath.Join(folder, "etcd_connection")
	for _, row := range []struct{ more, want string }{
		{`, "certificate_file": "ca.crt", "client_certificate_file": "kubelets.crt", "client_key_file": "kubelets.key"`, "of 0 keys none is a model"},
		{`, "certificate_file": "ca.crt"`, "etcd at " + url},
		{`, "client_certificate_file": "kubelets.crt"`, "the client certificate for etcd"},
	} {
		if err := os.WriteFile(config, []byte(`{"endpoints": "`+url+`"`+row.more+`}`), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := run(t, "--etcd", config, "--pool", "p"); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("with %s: %v, want %s", row.more, err, row.want)
		}
	}
}

func connect(t *testing.T, url string) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// secure gives etcd users with passwords: root, and one who may read what is below
// /modelmesh-serving/.
func secure(t *testing.T, client *clientv3.Client) {
	t.Helper()
	const from, to = "/modelmesh-serving/", "/modelmesh-serving0"
	for _, step := range []func(context.Context) error{
		func(ctx context.Context) error { _, err := client.UserAdd(ctx, "root", "root"); return err },
		func(ctx context.Context) error { _, err := client.RoleAdd(ctx, "root"); return err },
		func(ctx context.Context) error { _, err := client.UserGrantRole(ctx, "root", "root"); return err },
		func(ctx context.Context) error { _, err := client.RoleAdd(ctx, "reader"); return err },
		func(ctx context.Context) error {
			_, err := client.RoleGrantPermission(ctx, "reader", from, to, clientv3.PermissionType(clientv3.PermRead))
			return err
		},
		func(ctx context.Context) error { _, err := client.UserAdd(ctx, "reader", "secret"); return err },
		func(ctx context.Context) error { _, err := client.UserGrantRole(ctx, "reader", "reader"); return err },
		func(ctx context.Context) error { _, err := client.AuthEnable(ctx); return err },
	} {
		if err := step(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// Each record becomes the object that it describes.
func TestRecordsBecomeObjects(t *testing.T) {
	printed, faults, err := run(t, "--dump", dumpOf(t, records()), "--pool", "runtimes")
	if err != nil || faults != "" {
		t.Fatalf("%v, %s", err, faults)
	}
	const key = `{"storage_key":"localMinIO","model_type":{"name":"sklearn"}}`
	const want = `model-2-7c4c6f8af5 Model_2 rt:custom "x"
gone--isvc-abcdef0123-c7c2a2d50c gone__isvc-abcdef0123 mt:sklearn "gone" ` + key + `
mnist--isvc-0123456789-cc0ac89264 mnist__isvc-0123456789 mt:sklearn "mnist" ` + key + `
org-model-v1-ef721bddcb org/Model v1 rt:custom "s3://bucket/v1"
plain plain rt:custom "/models/plain" opaque
x-c98e118e0a 模型 NLCLASSIFIER "old"
alias alias -> org/Model v1 of ""
mnist mnist -> mnist__isvc-0123456789 of "isvc"
owned owned -> Model_2 of "team"
stuck stuck -> plain of ""`
	if got := show(t, apply(t, printed)); got != want {
		t.Errorf("the objects are\n%s\nwant\n%s", got, want)
	}
	for _, word := range []string{
		"# 6 models and 4 VModels of ModelMesh's registry.\n",
		`# VModel "owned" was moving from "plain" to "Model_2": it begins with the latter`,
		`# VModel "stuck" stays at "plain": its target "Model_2" could not be loaded`,
		"inference.x-k8s.io/auto-delete: \"true\"", "inference.x-k8s.io/registered: \"true\"",
	} {
		if !strings.Contains(printed, word) {
			t.Errorf("it lacks %s:\n%s", word, printed)
		}
	}
}

// What an owner's controller makes again is left out, and what others name is not.
func TestOwnersAreSkipped(t *testing.T) {
	all := records()
	all[service+"/vmodels/pinned"] = `{"amid":"mnist__isvc-0123456789","tmid":"mnist__isvc-0123456789"}`
	printed, _, err := run(t, "--dump", dumpOf(t, all), "--pool", "runtimes", "--skip-owner", "isvc", "--skip-owner", "ksp")
	if err != nil {
		t.Fatal(err)
	}
	got := show(t, apply(t, printed))
	if !strings.Contains(got, "pinned -> mnist__isvc-0123456789") || strings.Contains(got, "gone__isvc") || strings.Contains(got, "mnist mnist ->") {
		t.Errorf("the objects are\n%s", got)
	}
	if !strings.Contains(printed, " 2 more belong to skipped owners.") {
		t.Errorf("it does not say how many it skips:\n%.200s", printed)
	}
}

// What cannot be taken over is listed with the reason, without secrets, and the rest is printed.
func TestRecordsThatAreLeft(t *testing.T) {
	all := records()
	maps.Copy(all, bad())
	printed, faults, err := run(t, "--dump", dumpOf(t, all), "--pool", "runtimes")
	if status, ok := errors.AsType[cli.Status](err); !ok || status.Code != 3 {
		t.Errorf("the status is %v", err)
	}
	for _, want := range []string{
		`model "../escape": spec.id: Invalid value: "../escape": no model can have this name`,
		`model "broken": its value is not JSON`,
		`model "numbered": its field type is not a string`,
		`vmodel "dangling": its target "absent" is not taken over`,
		`vmodel "plain": a model has the same id, and models and VModels of a pool share their names`,
		`vmodel "without": it has no target`,
		`vmodel "of the broken": its target "broken" is not taken over`,
	} {
		if !strings.Contains(faults, want) || !strings.Contains(printed, "# - "+want) {
			t.Errorf("it does not say %s:\n%s", want, faults)
		}
	}
	if strings.Contains(faults+printed, "hunter2") {
		t.Errorf("it shows a key:\n%s", faults)
	}
	if got := show(t, apply(t, printed)); !strings.Contains(got, "plain plain rt:custom") {
		t.Errorf("the rest is\n%s", got)
	}
}

// Type constraints become those of the pool's settings.
func TestTypeConstraintsBecomeSettings(t *testing.T) {
	constraints := write(t, `{
		"_default": {"required": ["_no_runtime"]},
		"rt:custom": {"required": ["rt:custom"], "preferred": ["gpu", "zone-1", "rt:custom"]},
		"free": {}
	}`)
	printed, faults, err := run(t, "--dump", dumpOf(t, records()), "--pool", "runtimes", "--type-constraints", constraints)
	if err != nil || faults != "" {
		t.Fatalf("%v, %s", err, faults)
	}
	w := apply(t, printed)
	s := w.Pools[objects.Name{Namespace: "default", Name: "runtimes"}].Settings
	if s == nil || s.Placement == nil {
		t.Fatalf("there are no settings:\n%s", printed)
	}
	const prefix = "modelmesh.headgate.dev/"
	label := func(name string) map[string]v1alpha1.LabelValue {
		return map[string]v1alpha1.LabelValue{prefix + name: "true"}
	}
	want := []v1alpha1.Constraint{
		{ModelType: "", Required: label("no_runtime-68bfb890bd")},
		{ModelType: "free"},
		{
			ModelType: "rt:custom", Required: label("rt.custom-02c4f6abf3"),
			Preferred: []map[string]v1alpha1.LabelValue{label("gpu"), label("zone-1")},
		},
	}
	if got := s.Placement.Constraints; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("the constraints are\n%v\nwant\n%v", got, want)
	}
	if line := `# - ` + prefix + `gpu: "true" for "gpu"`; !strings.Contains(printed, line) {
		t.Errorf("it does not say which labels pods need:\n%.600s", printed)
	}
}

// Bad input gets an error that says what to do.
func TestImportOfBadInput(t *testing.T) {
	good := dumpOf(t, records())
	for _, row := range []struct {
		args []string
		want string
	}{
		{[]string{"--pool", "p"}, "set either --etcd or --dump"},
		{[]string{"--dump", good, "--etcd", good, "--pool", "p"}, "set either --etcd or --dump"},
		{[]string{"--dump", good}, "set --pool"},
		{[]string{"--dump", good, "--pool", "P"}, "--pool P: no InferencePool can have this name"},
		{[]string{"--dump", good, "--pool", "p", "--namespace", "a.b"}, "no namespace can have this name"},
		{[]string{"--dump", filepath.Join(t.TempDir(), "absent"), "--pool", "p"}, "no such file"},
		{[]string{"--dump", write(t, "text"), "--pool", "p"}, "this is not the output of etcdctl get --prefix PREFIX -w json"},
		{[]string{"--dump", write(t, `{"count": 0}`), "--pool", "p"}, "this has no keys"},
		{[]string{"--dump", write(t, `{"kvs": [], "count": 3}`), "--pool", "p"}, "this has 0 of 3 keys: write it without --limit"},
		{[]string{"--dump", write(t, `{"kvs": []}`), "--pool", "p"}, "of 0 keys none is a model or a VModel of ModelMesh"},
		{[]string{"--dump", good, "--pool", "p", "--prefix", "/none/"}, "none is a model or a VModel of ModelMesh below \"/none/\""},
		{[]string{"--dump", good, "--pool", "p", "--type-constraints", write(t, "[]")}, "no type constraints of ModelMesh"},
		{[]string{"--etcd", write(t, `{"password": "hunter2", }`), "--pool", "p"}, "this is not the JSON of ModelMesh's Secret"},
		{[]string{"--etcd", write(t, `{}`), "--pool", "p"}, "its endpoints are empty"},
		{[]string{"--etcd", write(t, `{"endpoints": "https://127.0.0.1:1", "certificate": "x"}`), "--pool", "p"}, "is not PEM"},
		{[]string{"--etcd", write(t, `{"endpoints": "https://127.0.0.1:1", "certificate_file": "absent"}`), "--pool", "p"}, "no such file"},
	} {
		_, _, err := run(t, row.args...)
		if err == nil || !strings.Contains(err.Error(), row.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%v: %v, want %s", row.args, err, row.want)
		}
	}
}
