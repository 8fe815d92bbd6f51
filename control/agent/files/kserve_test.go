//go:build stores

package files_test

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/headgate/headgate/control/agent/fetch"
	"github.com/headgate/headgate/control/agent/files"
	"github.com/headgate/headgate/control/agent/storage"
	"github.com/headgate/headgate/test/fakehub"
	"github.com/headgate/headgate/test/stores"
	"github.com/headgate/headgate/test/venv"
)

// kserve is the version of KServe's downloader.
const kserve = "kserve-storage==0.21.0"

// TestKServeFetchesTheSameTrees fetches URIs with KServe's downloader, too, and compares the files.
// KServe leaves out files without bytes, and takes a name for the beginning of names, so that the
// models have neither.
func TestKServeFetchesTheSameTrees(t *testing.T) {
	python := venv.Python(t, kserve)
	model := map[string]string{"config.json": "{}", "1/model.onnx": strings.Repeat("0123456789", 1<<17), "1/deep/er/x": "x"}
	archives := map[string]string{
		"m.tgz": modelTar(t, model, true), "m.tar.gz": modelTar(t, model, true), "m.tar": modelTar(t, model, false), "m.zip": modelZip(t, model),
	}

	server := stores.RunS3(t)
	bucket := filepath.Join(server.Dir, "models")
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		kind := map[string]string{
			".tgz": "application/gzip", ".gz": "application/gzip", ".tar": "application/x-tar", ".zip": "application/zip",
		}[filepath.Ext(r.URL.Path)]
		w.Header().Set("Content-Type", cmp.Or(kind, "application/octet-stream")) // KServe compares it with the name
		w.Header().Set("ETag", `"v1"`)
		text, err := os.ReadFile(filepath.Join(bucket, r.URL.Path))
		if err != nil {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(text))
	}))
	defer web.Close()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(bucket, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	google := stores.RunGCS(t)
	post(t, google+"/storage/v1/b?project=p", "application/json", `{"name":"models"}`)
	hub := &fakehub.Hub{Repos: map[string]fakehub.Repo{"org/m": {Revisions: map[string]map[string][]byte{"main": {}}}}}
	hubServer := httptest.NewServer(hub)
	defer hubServer.Close()
	uris := []string{
		"s3://models/folder", "s3://models/folder/", "s3://models/folder/1/model.onnx", web.URL + "/folder/1/model.onnx",
		"gs://models/folder", "gs://models/folder/1/model.onnx", "hf://org/m",
	}
	for name, text := range model {
		write("folder/"+name, text)
		post(t, google+"/upload/storage/v1/b/models/o?uploadType=media&name="+url.QueryEscape("folder/"+name), "", text)
		hub.Repos["org/m"].Revisions["main"][name] = []byte(text)
	}
	for name, text := range archives {
		write("archives/"+name, text)
		uris = append(uris, "s3://models/archives/"+name, web.URL+"/archives/"+name)
	}
	entries := storage.Entries{
		"default_s3": {
			"type": "s3", "endpoint_url": server.URL, "access_key_id": server.Access, "secret_access_key": server.Secret,
			"region": "us-east-1",
		},
		"default_gs": {"type": "gs", "endpoint_url": google, "anonymous": "true"},
	}
	store, err := files.Open(files.Config{
		Dir: t.TempDir(), Log: slog.New(slog.DiscardHandler),
		Open: func(ctx context.Context, src storage.Source) (fetch.Remote, error) {
			return fetch.Open(ctx, src, fetch.Options{HubEndpoint: hubServer.URL})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	for i, uri := range uris {
		src, ok, err := storage.Resolve(storage.Request{Path: uri}, entries)
		if err != nil || !ok {
			t.Fatal(uri, ok, err)
		}
		local, err := store.Fetch(t.Context(), fmt.Sprint("m", i), src)
		if err != nil {
			t.Errorf("%s: %v", uri, err)
			continue
		}
		out := t.TempDir()
		const download = "import sys; from kserve_storage import Storage; Storage.download(*sys.argv[1:])"
		cmd := exec.CommandContext(t.Context(), python, "-c", download, uri, out)
		cmd.Env = append(os.Environ(), "AWS_ENDPOINT_URL="+server.URL, "AWS_ACCESS_KEY_ID="+server.Access,
			"AWS_SECRET_ACCESS_KEY="+server.Secret, "AWS_DEFAULT_REGION=us-east-1",
			"STORAGE_EMULATOR_HOST="+google, "NO_GCE_CHECK=true", "GOOGLE_CLOUD_PROJECT=p",
			"HF_ENDPOINT="+hubServer.URL, "HF_HOME="+t.TempDir())
		if text, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: KServe: %v\n%s", uri, err, text)
			continue
		}
		if err := os.RemoveAll(filepath.Join(out, ".cache")); err != nil { // huggingface_hub's own
			t.Fatal(err)
		}
		ours, theirs := treeOf(t, local.Path), treeOf(t, out)
		if !maps.Equal(ours, theirs) {
			t.Errorf("%s:\n%v here,\n%v by KServe", uri, sizes(ours), sizes(theirs))
		}
		if len(ours) == 0 {
			t.Errorf("%s: there is no file", uri)
		}
	}
}

// post posts a text to fake-gcs-server.
func post(t *testing.T, address, kind, text string) {
	t.Helper()
	client := http.Client{}
	defer client.CloseIdleConnections()
	answer, err := client.Post(address, kind, strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Fatal(address, answer.Status)
	}
}

func modelTar(t *testing.T, model map[string]string, compressed bool) string {
	t.Helper()
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	w := tar.NewWriter(z)
	if !compressed {
		w = tar.NewWriter(&out)
	}
	for _, name := range slices.Sorted(maps.Keys(model)) {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(model[name]))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(model[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if compressed {
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out.String()
}

func modelZip(t *testing.T, model map[string]string) string {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, name := range slices.Sorted(maps.Keys(model)) {
		f, err := w.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte(model[name])); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// treeOf returns the files below a folder, or a file by its name.
func treeOf(t *testing.T, path string) map[string]string {
	t.Helper()
	path = strings.TrimSuffix(path, "/")
	found := map[string]string{}
	err := filepath.WalkDir(path, func(at string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(path, at)
		if err != nil {
			return err
		}
		if name == "." {
			name = filepath.Base(at)
		}
		text, err := os.ReadFile(at)
		found[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func sizes(tree map[string]string) (text []string) {
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		text = append(text, fmt.Sprintf("%s: %d bytes", name, len(tree[name])))
	}
	return text
}
