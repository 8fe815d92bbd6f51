package run

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The store serves its files, makes up others, and lets a download continue.
func TestStore(t *testing.T) {
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "own"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "own", "model.joblib"), []byte("its own"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(folder), "secret"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(store(folder))
	defer server.Close()
	get := func(path, part string) (status int, tag, body string) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if part != "" {
			request.Header.Set("Range", "bytes="+part)
		}
		response, err := server.Client().Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, response.Header.Get("ETag"), string(text)
	}
	if status, tag, body := get("/own/model.joblib", ""); status != 200 || tag == "" || body != "its own" {
		t.Errorf("its own file: %d, %q, %q", status, tag, body)
	}
	status, tag, whole := get("/made/model.joblib", "")
	if status != 200 || !strings.HasPrefix(tag, `"`) || len(whole) != madeUp {
		t.Errorf("a made-up file: %d, %q, %d bytes", status, tag, len(whole))
	}
	if status, again, rest := get("/made/model.joblib", "1000-"); status != 206 || again != tag || rest != whole[1000:] {
		t.Errorf("the rest of it: %d, %q, %d bytes", status, again, len(rest))
	}
	if _, other, _ := get("/other/model.joblib", ""); other == tag {
		t.Error("two made-up files are the same")
	}
	for _, path := range []string{"/", "/own", "/a/b/c", "/../secret"} {
		if status, _, _ := get(path, ""); status != 404 {
			t.Errorf("%s: %d", path, status)
		}
	}
}
