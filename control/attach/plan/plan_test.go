package plan_test

import (
	"fmt"
	"testing"

	"github.com/headgate/headgate/control/attach/plan"
	"github.com/headgate/headgate/internal/attach"
	"github.com/headgate/headgate/internal/objects"
	"github.com/headgate/headgate/test/golden"
	"github.com/headgate/headgate/test/network"
)

// The input of a block is objects in YAML, which are added to those of [network.Standard]. The
// output is the plan.
func TestScenarios(t *testing.T) {
	golden.Run(t, "testdata/*.txt", func(t *testing.T) func(string) string {
		return func(input string) string {
			n := network.Read(t, network.Standard(input))
			a := attach.Of(n)
			told := plan.Of(a, n, plan.Known{Certificates: certificates, Authorities: authorities}).Text()
			if secrets := plan.Secrets(a, n); len(secrets) > 0 {
				told += fmt.Sprintf("reads %v\n", secrets)
			}
			if maps := plan.ConfigMaps(a, n); len(maps) > 0 {
				told += fmt.Sprintf("reads ConfigMaps %v\n", maps)
			}
			return told
		}
	})
}

// authorities are the results of reading ConfigMaps.
var authorities = map[objects.Name]plan.Certificate{
	{Namespace: "ns", Name: "ca"}:     {Chain: []byte("authority")},
	{Namespace: "other", Name: "ca"}:  {Chain: []byte("authority")},
	{Namespace: "third", Name: "ca"}:  {Chain: []byte("authority")},
	{Namespace: "ns", Name: "more"}:   {Chain: []byte("another")},
	{Namespace: "ns", Name: "broken"}: {Fault: "it has no ca.crt"},
}

// certificates are the results of reading Secrets.
var certificates = map[objects.Name]plan.Certificate{
	{Namespace: "ns", Name: "cert"}:     {Chain: []byte("chain"), Key: []byte("key")},
	{Namespace: "other", Name: "cert"}:  {Chain: []byte("chain"), Key: []byte("key")},
	{Namespace: "ns", Name: "broken"}:   {Fault: "tls.key does not fit tls.crt"},
	{Namespace: "ns", Name: "missing"}:  {Fault: "there is no such Secret"},
	{Namespace: "ns", Name: "was-good"}: {Chain: []byte("chain"), Key: []byte("key"), Fault: "tls.key does not fit tls.crt"},
	{Namespace: "ns", Name: "old"}:      {Chain: []byte("chain"), Key: []byte("key"), Warning: "it has expired"},
	{Namespace: "other", Name: "key"}:   {Chain: []byte("chain"), Key: []byte("key")},
}
