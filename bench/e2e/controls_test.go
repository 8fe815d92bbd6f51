package e2e

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/api/placement"
	leaders "github.com/headgate/headgate/bench/leader"
	"github.com/headgate/headgate/internal/process"
	"github.com/headgate/headgate/test/apiserver"
)

// control is one of several control processes, and a connection to it.
type control struct {
	*process.Process
	*grpc.ClientConn
}

// startControl starts a control as the given pod and returns when its server is up.
func startControl(t *testing.T, kubeconfig, pod, host string) control {
	t.Helper()
	dir := t.TempDir()
	socket := "unix:" + filepath.Join(dir, "control.sock")
	p, err := process.NewStarter().Start("control", dir, exec.Command(programs(t).Headgate, "control", "--kube", "--kubeconfig", kubeconfig,
		"--listen", socket, "--metrics-host", host, "--metrics-port", "9091", "--pod", system+"/"+pod, "--pod-ip", host,
		"--credentials-dir", t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := p.AwaitOK(ctx, "http://"+host+":9091/readyz"); err != nil {
		t.Fatal(err, p.LastWords())
	}
	conn, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return control{p, conn}
}

// Both of two controls serve health and reflection. Only the leader serves the other services. When
// the leader dies, the other control takes over, and clients connected to it need not reconnect.
func TestEveryControlServes(t *testing.T) {
	runs(t, raced)
	k := newKubernetes(t)
	config, err := k.ServiceAccount(t.Context(), system, "headgate-control")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, hosts := apiserver.KubeconfigFile(t, config), network()
	leader := startControl(t, kubeconfig, "control-0", hosts+"1")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := leaders.Await(ctx, leader.ClientConn); err != nil {
		t.Fatal(err)
	}
	other := startControl(t, kubeconfig, "control-1", hosts+"2")

	for name, c := range map[string]control{"the leader": leader, "the other": other} {
		is, err := healthv1.NewHealthClient(c).Check(ctx, &healthv1.HealthCheckRequest{}, grpc.WaitForReady(true))
		if err != nil || is.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("health of %s: %v, %v", name, is, err)
		}
		asks, err := reflectionv1.NewServerReflectionClient(c).ServerReflectionInfo(ctx)
		if err != nil {
			t.Fatal(err)
		}
		list := &reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}
		if err := asks.Send(list); err != nil {
			t.Fatal(err)
		}
		answer, err := asks.Recv()
		var services []string
		for _, s := range answer.GetListServicesResponse().GetService() {
			services = append(services, s.GetName())
		}
		if err != nil || len(services) < 4 { // the services are placement, ModelMesh's API, health and reflection
			t.Errorf("reflection of %s: %v, %v", name, services, err)
		}
	}
	_, err = mmesh.NewModelMeshClient(other).GetModelStatus(ctx, &mmesh.GetStatusRequest{ModelId: "m"})
	if status.Code(err) != codes.Unavailable {
		t.Errorf("ModelMesh's API of the other: %v", err)
	}
	connect := func(c control) (*placement.Update, error) {
		stream, err := placement.NewPlacementClient(c).Connect(ctx)
		if err != nil {
			return nil, err
		}
		_ = stream.Send(&placement.Report{Process: "test"}) // if this fails, Recv returns the reason
		return stream.Recv()
	}
	if _, err := connect(other); status.Code(err) != codes.Unavailable {
		t.Errorf("placement of the other: %v", err)
	}

	watch, err := healthv1.NewHealthClient(other).Watch(ctx,
		&healthv1.HealthCheckRequest{Service: placement.Placement_ServiceDesc.ServiceName})
	if err != nil {
		t.Fatal(err)
	}
	var seen []string
	began := time.Now()
	leader.Kill()
	for len(seen) == 0 || seen[len(seen)-1] != "SERVING" {
		is, err := watch.Recv()
		if err != nil {
			t.Fatalf("after %v: %v", seen, err)
		}
		seen = append(seen, is.GetStatus().String())
	}
	t.Logf("the other leads %v after the leader was killed", time.Since(began).Round(100*time.Millisecond))
	if len(seen) != 2 || seen[0] != "NOT_SERVING" {
		t.Errorf("the other's health was %v", seen)
	}
	if u, err := connect(other); err != nil || !u.GetComplete() {
		t.Errorf("placement of the other, which leads now: %v, %v", u, err)
	}
	if is := other.GetState(); is != connectivity.Ready {
		t.Errorf("the connection to it is %v", is)
	}
	k.checkRights()
}
