package stores

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// RunRegistry starts distribution, the CNCF's registry of images, on an empty folder, and returns
// its host and port. It requires the user "u" with the password "pass-word".
func RunRegistry(t testing.TB) string {
	t.Helper()
	address, dir := FreeAddress(t), t.TempDir()
	users, config := filepath.Join(dir, "htpasswd"), filepath.Join(dir, "config.yaml")
	for path, text := range map[string]string{
		users: "u:$2a$04$57asSj.o.vBZzZ/8BDzuAupX2Qhdegnec3JoXWcvh4qMCgaHeHsLe\n",
		config: fmt.Sprintf(`version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: %s}}
http: {addr: %q, secret: s}
auth: {htpasswd: {realm: r, path: %s}}
`, filepath.Join(dir, "data"), address, users),
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	command := exec.Command(Binary(t, "registry"), "serve", config)
	command.Env = append(os.Environ(), "OTEL_TRACES_EXPORTER=none")
	Run(t, command, "http://"+address+"/")
	return address
}
