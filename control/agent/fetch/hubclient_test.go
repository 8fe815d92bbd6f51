package fetch

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/test/fakehub"
	"github.com/headgate/headgate/test/venv"
)

// hubClient is the Hub's own client.
const hubClient = "huggingface_hub==2.4.0"

// TestHubAsItsOwnClient compares what hub and huggingface_hub download from one server, and what
// they refuse. It also shows that fakehub serves what that client requires.
func TestHubAsItsOwnClient(t *testing.T) {
	if testing.Short() {
		t.Skip("installs a client")
	}
	python := venv.Python(t, hubClient)
	hub := &fakehub.Hub{PageSize: 3, Repos: map[string]fakehub.Repo{
		"org/lora": {Token: "hf_secret", Revisions: map[string]map[string][]byte{
			"main": texts(loraFiles), "refs/pr/1": {"one": []byte("1"), "a/b/two": []byte(large + "2")}, "bare": {},
		}},
		"org/public": {Revisions: map[string]map[string][]byte{"main": texts(loraFiles)}},
		"org/gated":  {Token: "hf_secret_of_others", Gated: true, Revisions: map[string]map[string][]byte{"main": {"one": []byte("1")}}},
	}}
	cdn := httptest.NewServer(http.HandlerFunc(hub.ServeCDN))
	defer cdn.Close()
	hub.CDN = cdn.URL
	site := httptest.NewServer(hub)
	defer site.Close()

	cases := []struct {
		repo, revision, include, token string
		refused                        string // exception of the client
		reason                         Reason
	}{
		{repo: "org/lora", token: "hf_secret"},
		{repo: "org/lora", revision: "refs/pr/1", token: "hf_secret"},
		{repo: "org/lora", revision: fakehub.Commit(texts(loraFiles)), token: "hf_secret", include: "*.json"},
		{repo: "org/public", include: "tokenizer/,adapter_*"},
		{repo: "org/public", include: "[!a]*"},
		{repo: "org/none", refused: "RepositoryNotFoundError", reason: NotFound},
		{repo: "org/lora", refused: "RepositoryNotFoundError", reason: NotFound},
		{repo: "org/lora", revision: "v9", token: "hf_secret", refused: "RevisionNotFoundError", reason: NotFound},
		{repo: "org/gated", token: "hf_secret", refused: "GatedRepoError", reason: Denied},
	}
	var arguments []map[string]any
	for _, c := range cases {
		a := map[string]any{"repo_id": c.repo, "local_dir": t.TempDir(), "token": false}
		if c.token != "" {
			a["token"] = c.token
		}
		if c.revision != "" {
			a["revision"] = c.revision
		}
		if c.include != "" {
			a["allow_patterns"] = strings.Split(c.include, ",")
		}
		arguments = append(arguments, a)
	}
	text, err := json.Marshal(arguments)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), python, "testdata/snapshots.py", string(text))
	command.Env = append(os.Environ(), "HF_ENDPOINT="+site.URL, "HF_HOME="+t.TempDir(), "HF_HUB_DISABLE_PROGRESS_BARS=1",
		"HF_HUB_DISABLE_TELEMETRY=1", "NO_PROXY=127.0.0.1")
	var faults bytes.Buffer
	command.Stderr = &faults
	out, err := command.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, faults.String())
	}
	var refused []string
	if err := json.Unmarshal(out, &refused); err != nil || len(refused) != len(cases) {
		t.Fatalf("%v: %s", err, out)
	}
	for i, c := range cases {
		t.Run(c.repo+":"+c.revision+" "+c.include, func(t *testing.T) {
			if refused[i] != c.refused {
				t.Errorf("the client: %q\n%s", refused[i], faults.String())
			}
			source := hubSource("hf://"+c.repo, c.repo, c.revision)
			source.Fields = map[string]string{"token": c.token, "include": c.include, "endpoint": site.URL}
			r, err := openHub(t.Context(), source, dialing)
			if c.refused == "" {
				want, got := files(t, arguments[i]["local_dir"].(string)), contents(t, r, err)
				if len(got) == 0 || !maps.Equal(got, want) {
					t.Errorf("%q, but the client has %q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			l, err := r.List(t.Context())
			for _, o := range l.Objects {
				_, err = r.Open(t.Context(), o, 0, -1)
			}
			refusal(t, err, source.URI, c.reason, "")
		})
	}
}

// files reads the files below a folder, without the folder .cache that clients make.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && d.Name() == ".cache":
			return fs.SkipDir
		case d.IsDir():
			return nil
		}
		b, err := os.ReadFile(path)
		name, below := strings.CutPrefix(path, dir+string(filepath.Separator))
		if !below {
			return errors.New(path)
		}
		all[name] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
