package fetch

import (
	"encoding/hex"
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
)

func hexOf(sum []byte) string { return hex.EncodeToString(sum) }

func pemOf(s *httptest.Server) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
}

// writeFiles writes files below a folder.
func writeFiles(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestClaims(t *testing.T) {
	dir := t.TempDir()
	writeFiles(t, dir, map[string]string{
		"outside/x": "x", "claims/a/m/1/model.onnx": content, "claims/a/schema.json": "{}", "claims/a/single": content, "claims/b/x": "x",
		"claims/a/leaks/fine": "x",
	})
	for from, to := range map[string]string{
		"claims/a/current": "m", "claims/a/out": "../../outside", "claims/a/absolute": "/etc", "claims/a/leaks/x": "../../b/x",
		"claims/a/nowhere": "none",
	} {
		if err := os.Symlink(to, filepath.Join(dir, from)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "claims/a/empty/below"), 0o755); err != nil {
		t.Fatal(err)
	}
	opts := Options{ClaimsDir: filepath.Join(dir, "claims")}
	real, err := filepath.EvalSymlinks(opts.ClaimsDir)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		uri, link string
		single    bool
	}{{"pvc://a/m", "a/m", false}, {"pvc://a/current", "a/m", false}, {"pvc://a/single", "a/single", true}, {"pvc://b", "b", false}} {
		listing := list(t, open(t, resolve(t, c.uri, "", nil), opts))
		if listing.Link != filepath.Join(real, c.link) || listing.Single != c.single || len(listing.Objects) > 0 {
			t.Errorf("%s: %+v", c.uri, listing)
		}
	}
	remote := open(t, resolve(t, "pvc://a/m", `{"schema_path":"schema.json"}`, nil), opts)
	if text, err := read(remote, *list(t, remote).Schema, 0, -1); err != nil || text != "{}" {
		t.Errorf("schema: %q, %v", text, err)
	}
	for _, c := range []struct {
		uri, schema string
		reason      Reason
		words       string
	}{
		{"pvc://none/m", "", NotFound, `no PersistentVolumeClaim "none" is mounted`},
		{"pvc://a/none", "", NotFound, `there is no "none"`},
		{"pvc://a/nowhere", "", NotFound, `there is no "nowhere"`},
		{"pvc://a/out/x", "", Unsafe, "leads out of the claim"},
		{"pvc://a/absolute", "", Unsafe, "leads out of the claim"},
		{"pvc://a/leaks", "", Unsafe, "leads out of the claim"},
		{"pvc://a/empty", "", Empty, "there is no file"},
		{"pvc://a/m", "none", NotFound, `there is no schema "none"`},
		{"pvc://a/m", "out/x", Unsafe, "leads out of the claim"},
		{"pvc://a/m", "m", Invalid, "is no file"},
	} {
		key := ""
		if c.schema != "" {
			key = `{"schema_path":"` + c.schema + `"}`
		}
		remote, err := Open(t.Context(), resolve(t, c.uri, key, nil), opts)
		if err == nil {
			_, err = remote.List(t.Context())
		}
		fails(t, err, c.reason, c.words)
	}
	_, err = Open(t.Context(), resolve(t, "pvc://a/m", "", nil), Options{})
	fails(t, err, NotFound, "this agent has no claims; mount them, and name their folder with --pvc-dir")
}
