package configdump_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/headgate/headgate/internal/configdump"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/internal/objects/source"
)

var update = flag.Bool("update", false, "write what is explained into testdata")

// The output has every setting, with file and line for those of objects.
func TestEffectiveSettingsAreExplained(t *testing.T) {
	var c configdump.Command
	fs := pflag.NewFlagSet("program", pflag.ContinueOnError)
	objectsDir := fs.String("objects", "", "")
	fs.Bool("kube", true, "")
	fs.String("kubeconfig", "", "")
	fs.String("namespace", "default", "")
	fs.StringArray("listen", nil, "")
	fs.StringSlice("endpoints", nil, "")
	fs.String("config-text", "", "")
	fs.String("scale", "", "")
	fs.String("of-others", "", "")
	_ = fs.MarkHidden("of-others")
	fs.Bool("version", false, "")
	c.Register(fs)
	if err := fs.Parse([]string{
		"--objects", "testdata/objects", "--explain-config", "--listen", "a", "--listen", "b", "--config-text",
		"x\ny", "--of-others", "x",
	}); err != nil || !c.On {
		t.Fatal(c.On, err)
	}
	c.Note(fs, map[string]string{"namespace": "$NAMESPACE", "scale": "flag --of-others"}, "/home/me/config")
	if got := c.From("objects") + ", " + c.From("endpoints") + ", " + c.From("scale"); got != "flag --objects, default, flag --of-others" {
		t.Errorf("flags are from %s", got)
	}
	var out bytes.Buffer
	ofPool := func(w *objects.World, p *objects.Pool) []configdump.Setting {
		if p.Settings == nil {
			return nil
		}
		return []configdump.Setting{{
			Name: "policy", Value: "proposal", From: w.Where("PoolSettings", p.SettingsName),
			Means: "how an endpoint is picked",
		}}
	}
	if err := c.Print(t.Context(), &out, source.Source{Dir: *objectsDir, Endpoints: []string{"localhost:1"}}, ofPool); err != nil {
		t.Fatal(err)
	}
	const file = "testdata/explained.txt"
	if *update {
		if err := os.WriteFile(file, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if out.String() != string(want) {
		t.Errorf("it says\n%s", out.String())
	}
}

// nothing is a source whose objects cannot be read.
type nothing struct{}

var errNothing = errors.New("there is nothing")

func (nothing) Read(context.Context) (*objects.World, error) { return nil, errNothing }

func TestEmptyConfigDump(t *testing.T) {
	var c configdump.Command
	var out bytes.Buffer
	if err := c.Print(t.Context(), &out, nothing{}, nil); !errors.Is(err, errNothing) || out.Len() > 0 {
		t.Errorf("of objects that cannot be read: %v, %q", err, out.String())
	}
	got := configdump.Text([]configdump.Setting{{Name: "--kube", Value: "false", From: configdump.Default}},
		objects.Build(objects.Set{}), nil)
	if want := "FLAGS\n  setting  value  from\n  --kube   false  default\n\nno pool\n"; got != want {
		t.Errorf("without objects it says %q", got)
	}
	if strings.Contains(got, "PROBLEMS") {
		t.Error("it sees problems")
	}
}
