package layout

import (
	"bytes"
	"fmt"
	"io"
	"path"
	"strings"
)

const (
	archiveSuffix = ".mar"
	// torchConfig is the file that TorchServe waits for in ModelMesh's runtime
	// (TS_CONFIG_FILE=/models/_torchserve_models/mmconfig.properties).
	torchConfig = "mmconfig.properties"
)

// torchProperties is the text of [torchConfig], as ModelMesh's adapter writes it, with two settings
// that TorchServe 0.12 needs before it loads models. They turn its model API on, and its tokens
// off, because the agent has no token of TorchServe. The management port listens on loopback.
// Environment variables that begin with TS_ override all settings.
func torchProperties(store string) string {
	return fmt.Sprintf(`enable_envvars_config=true
model_store=%s
metric_time_interval=10
inference_address=http://127.0.0.1:8083
management_address=http://127.0.0.1:8081
number_of_netty_threads=8
job_queue_size=512
enable_model_api=true
disable_token_authorization=true
`, store)
}

// planTorchServe links a model archive. A folder must have exactly one.
func planTorchServe(p *plan, m Model, c content) error {
	at := c.at
	if c.folder(at) {
		entries, err := c.list(at)
		if err != nil {
			return err
		}
		var archives []string
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), archiveSuffix) {
				archives = append(archives, path.Join(at, e.Name()))
			}
		}
		if len(archives) != 1 {
			return refuse("TorchServe loads one archive per model, and the source has %d files with the suffix .mar: "+
				"name one of them in the source", len(archives))
		}
		at = archives[0]
	}
	if is, err := c.zip(at); err != nil || !is {
		if err != nil {
			return err
		}
		return refuse("%s is no archive of TorchServe: pack the model with torch-model-archiver, and store the file with the suffix .mar",
			path.Base(at))
	}
	p.link(m.ID+archiveSuffix, at)
	return nil
}

// zip reports whether a file begins as a zip archive, as archives of TorchServe do.
func (c content) zip(at string) (bool, error) {
	f, err := c.files.Open(at)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var head [4]byte
	if _, err := io.ReadFull(f, head[:]); err != nil {
		return false, nil //nolint:nilerr // a shorter file is no archive
	}
	return bytes.Equal(head[:], []byte("PK\x03\x04")), nil
}
