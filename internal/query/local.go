package query

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	"github.com/headgate/headgate/internal/process"
)

// RunDir is the default folder in which headgate run keeps its files.
const RunDir = ".headgate"

// runDirs are the folders in which commands look for a run: the default, and that of make run.
var runDirs = [...]string{RunDir, ".run"}

const localFile = "addresses.json"

// Local are the addresses at which the programs of a headgate run listen, each HOST:PORT. An empty
// one means that the program does not run. Objects is the folder of its objects; empty if it has
// none.
type Local struct {
	Listen  string `json:"listen"`  // Envoy, for clients
	Admin   string `json:"admin"`   // Envoy's admin interface
	Extproc string `json:"extproc"` // extproc's metrics
	Control string `json:"control"` // control's metrics
	Objects string `json:"objects,omitempty"`
}

// InThisFolder returns the addresses of the headgate run in the working folder. If there is none,
// it returns the default addresses.
func InThisFolder() Local {
	l := Local{Listen: "127.0.0.1:8080", Admin: "127.0.0.1:9901", Extproc: "127.0.0.1:9090", Control: "127.0.0.1:9091"}
	for _, dir := range runDirs {
		text, err := os.ReadFile(filepath.Join(dir, localFile))
		var written Local
		if err == nil && json.Unmarshal(text, &written) == nil && runs(dir) {
			return written
		}
	}
	return l
}

// runs reports whether the headgate run of a folder still runs. A run that was killed leaves its
// files.
func runs(dir string) bool { return process.Locked(filepath.Join(dir, "lock")) }

// Write writes the addresses into the folder of a run, for [InThisFolder].
func (l Local) Write(dir string) error {
	text, err := json.MarshalIndent(l, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, localFile), append(text, '\n'), 0o644))
}

// ControlURL returns the URL of control's metrics.
func (l Local) ControlURL() string { return urlOf(l.Control) }

// urlOf returns the URL of an address, or nothing for none.
func urlOf(address string) string {
	if address == "" {
		return ""
	}
	return "http://" + address
}
