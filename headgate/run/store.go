package run

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/headgate/headgate/internal/listen"
)

// madeUp is the size of a made-up file, in bytes.
const madeUp = 256 << 10

// serveModels serves the store of the demo of models, and finds the agent's program.
func serveModels(ctx context.Context, o *options) error {
	o.Programs.Agent = filepath.Join(filepath.Dir(o.Programs.Headgate), "agent")
	if _, err := os.Stat(o.Programs.Agent); err != nil {
		return fmt.Errorf("%s is missing: make build builds it, and releases have it beside headgate", o.Programs.Agent)
	}
	if o.MLServer != "" {
		path, err := exec.LookPath(o.MLServer)
		if err == nil {
			path, err = filepath.Abs(path)
		}
		if err != nil {
			return fmt.Errorf("--mlserver: %w", err)
		}
		o.MLServer = path
	}
	return serveStore(ctx, o.store, filepath.Join(o.Dir, "store"))
}

// serveStore serves the store of the demo of models at an address, until ctx ends: the files of a
// folder, and made-up files for paths of two elements that it does not have, such as
// customer-01/model.joblib. It returns once it listens.
func serveStore(ctx context.Context, address, folder string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("--store %s: %w: choose another address, and name it in the sources of the models", address, err)
	}
	go func() { _ = listen.HTTP(ctx, l, store(folder)) }() // ends with ctx
	return nil
}

// store returns the handler of the store.
func store(folder string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := path.Clean("/" + r.URL.Path)[1:]
		content, err := os.ReadFile(filepath.Join(folder, filepath.FromSlash(name)))
		if err != nil {
			if strings.Count(name, "/") != 1 {
				http.NotFound(w, r)
				return
			}
			content = contentOf(name)
		}
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(content)))
		http.ServeContent(w, r, path.Base(name), time.Time{}, bytes.NewReader(content))
	})
}

// contentOf returns the content of a made-up file. It depends on the name alone.
func contentOf(name string) []byte {
	content := make([]byte, madeUp)
	_, _ = rand.NewChaCha8(sha256.Sum256([]byte(name))).Read(content) // cannot fail
	return content
}
