// Package doctor implements the command "headgate doctor": it checks everything that a request
// needs, and says what to do about each fault. Package diagnosis judges; this package asks.
package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/headgate/headgate/headgate/doctor/diagnosis"
	"github.com/headgate/headgate/internal/cli"
	"github.com/headgate/headgate/internal/display"
	"github.com/headgate/headgate/internal/engineclient"
	"github.com/headgate/headgate/internal/objects/source"
	"github.com/headgate/headgate/internal/query"
)

const usage = `headgate doctor checks what a request needs, and prints a line for each result:

  ✓  no fault
  !  a warning: this may be a fault, or it limits something; the next line says what to do
  ✗  a fault: requests fail, or programs do not start; the next line says what to do

It checks:

  objects       with --objects: Headgate can read them, and they do not conflict. A fault has its file and line
  cluster       with --kube: the CRDs exist, and control has the RBAC rights that manifests/base and the chart grant
  envoy         Envoy runs, is ready, and its listener answers. If it does not run: it is installed, and its ports are free.
                It forwards the headers to extproc that LLMRoutes name for tenants and programs
  extproc       it answers, has the same version as this program, rejects no object file, and its endpoints answer
  control       it answers, has the same version, and rejects no object file; no control is not a fault
  engines       with --objects: each engine lists its models, with the token and TLS of the flags and objects
  certificates  with --tls-cert and --tls-key: the key belongs to the certificate, and the certificate has not expired
  clock         the clocks of engines and control agree with the clock of this machine
  conditions    no object in --objects, in the API server (--kube) or of a running control has a condition that is False.
                States of normal operation, such as a model that is loading, are warnings

With --kube, it asks control and its extprocs if a port is forwarded to the leader's pod (headgate status --help), and Envoy
only if --listen or --envoy-admin is set.

The exit status is 1 if there is a fault (✗), and 0 otherwise.

Usage:

  headgate doctor [flags]

Examples:

  headgate doctor --objects /etc/headgate/objects --listen 127.0.0.1:8443
  headgate doctor --kube
  headgate doctor --tls-cert tls.crt --tls-key tls.key -o json

`

// options are the command line.
type options struct {
	query.Addresses
	source.Source
	engines       engineclient.Flags
	listen, admin string
	cert, key     string
	account       string
}

// Command is the command "doctor". It prints to out.
func Command(ctx context.Context, args []string, out io.Writer) error {
	var o options
	fs := cli.Flags("headgate doctor", usage, out)
	fs.Group("Objects")
	local := query.InThisFolder()
	fs.StringVar(&o.Dir, "objects", local.Objects, "check the objects in this `DIR`, and their engines; in the folder of a headgate run, the default is its objects")
	o.Kube.Register(fs.FlagSet)
	fs.StringVar(&o.account, "service-account", "headgate-system/headgate-control", "with --kube: check the RBAC rights of control, which runs as this `NAMESPACE/NAME`")
	fs.Group("Programs")
	o.Register(fs.FlagSet)
	fs.StringVar(&o.listen, "listen", local.Listen, "Envoy's listener for clients, `HOST:PORT`; if empty, Envoy is not checked")
	fs.StringVar(&o.admin, "envoy-admin", local.Admin, "Envoy's admin listener, `HOST:PORT`; if empty, Envoy is not checked")
	fs.Group("Engines and certificates")
	o.engines.Register(fs.FlagSet)
	fs.StringVar(&o.cert, "tls-cert", "", "check the certificate in this PEM `FILE`, the one of headgate envoy")
	fs.StringVar(&o.key, "tls-key", "", "check that this PEM `FILE` contains the private key of --tls-cert")
	fs.Group("Output")
	format := fs.StringP("output", "o", "text", "output `FORMAT`: text or json")
	if err := cli.Parse(fs, args, 0); err != nil {
		return err
	}
	if *format != "text" && *format != "json" {
		return fs.Wrong(fmt.Errorf("-o %q: want text or json", *format))
	}
	if (o.cert == "") != (o.key == "") {
		return fs.Wrong(errors.New("--tls-cert and --tls-key belong together: set both"))
	}
	if o.Kube.On {
		o.inCluster(fs)
	}
	if namespace, name, _ := strings.Cut(o.account, "/"); namespace == "" || name == "" {
		return fs.Wrong(fmt.Errorf("--service-account %q: want NAMESPACE/NAME", o.account))
	}
	for _, err := range []error{o.Check(), o.Kube.Check(o.Dir), o.engines.Check(o.Kube.On)} {
		if err != nil {
			return fs.Wrong(err)
		}
	}
	access, err := o.engines.Access(slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	all := diagnosis.Of(gather(ctx, o, access))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := write(out, all, *format == "json"); err != nil {
		return err
	}
	if diagnosis.Failed(all) {
		return cli.Status{Code: cli.Failed, Why: "there are faults"}
	}
	return nil
}

// inCluster changes the defaults of flags that are not set: programs of a cluster do not run on
// this machine, but a port may be forwarded to the leading control.
func (o *options) inCluster(fs *cli.FlagSet) {
	if !fs.Changed("control-url") {
		o.Control = "http://127.0.0.1:9091"
	}
	if !fs.Changed("objects") {
		o.Dir = ""
	}
	if !fs.Changed("extproc-url") {
		o.Extproc = ""
	}
	if !fs.Changed("listen") && !fs.Changed("envoy-admin") {
		o.listen, o.admin = "", ""
	}
}

// write prints the findings.
func write(out io.Writer, all []diagnosis.Finding, asJSON bool) error {
	if asJSON {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	counts := make(map[diagnosis.Level]int)
	for _, f := range all {
		counts[f.Level]++
		fmt.Fprintf(out, "%s %-12s  %s\n", f.Level, f.Part, f.What)
		if f.Do != "" {
			fmt.Fprintf(out, "  %-12s  %s\n", "", f.Do)
		}
	}
	_, err := fmt.Fprintf(out, "\n%s, %s\n", display.Count(counts[diagnosis.Fault], "fault"),
		display.Count(counts[diagnosis.Warning], "warning"))
	return err
}
