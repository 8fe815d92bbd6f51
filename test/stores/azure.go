package stores

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/headgate/headgate/internal/process"
	"github.com/headgate/headgate/test/gobuild"
)

// azurite is the version of Microsoft's emulator of Azure Blob Storage in npm.
const azurite = "3.37.0"

// Azure is a running azurite.
type Azure struct {
	URL, Account string
	// Key is the account's key. It is public: Microsoft's documents name it.
	Key string
}

// Connection returns the connection string of the account.
func (a Azure) Connection() string {
	return "DefaultEndpointsProtocol=http;AccountName=" + a.Account + ";AccountKey=" + a.Key + ";BlobEndpoint=" + a.URL + "/" + a.Account
}

// RunAzure starts azurite on an empty folder. The first call installs it into .cache with npm.
func RunAzure(t testing.TB) Azure {
	t.Helper()
	root, err := gobuild.Root(".")
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, ".cache", "azurite-"+azurite)
	unlock, err := process.Lock(dir + ".lock")
	if err != nil {
		t.Fatal(err)
	}
	program, done := filepath.Join(dir, "node_modules", ".bin", "azurite-blob"), filepath.Join(dir, "installed")
	if _, err := os.Stat(done); err != nil {
		cmd := exec.Command("npm", "install", "--silent", "--no-save", "--no-package-lock", "--prefix", dir, "azurite@"+azurite)
		out, err := cmd.CombinedOutput()
		if err == nil {
			err = os.WriteFile(done, nil, 0o644)
		}
		if err != nil {
			t.Fatalf("install azurite (the test needs Node with npm): %v\n%s", err, out)
		}
	}
	unlock()
	a := Azure{
		Account: "devstoreaccount1",
		Key:     "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==",
	}
	address := FreeAddress(t)
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	a.URL = "http://" + address
	Run(t, exec.Command(program, "--blobHost", host, "--blobPort", port, "--location", t.TempDir(), "--silent", "--skipApiVersionCheck",
		"--disableTelemetry"), "tcp://"+address)
	return a
}
