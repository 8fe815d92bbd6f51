package manage

import (
	"context"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/headgate/simulated/runtime"
)

// What a runtime answers passes the agent unchanged: methodInfos, sizes, limits, codes and
// messages.
func TestAnswersOfARuntimePass(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		t.Run(network, func(t *testing.T) {
			direct := newRuntime(t, network, runtime.Config{Concurrency: 3})
			behind := newRuntime(t, network, runtime.Config{Concurrency: 3})
			agent := newAgent(t, Config{}, func() Engine { return runtimeAt(t, behind.address) })
			all := []mmesh.ModelRuntimeClient{calls(t, direct.address), calls(t, agent.address)}
			for _, c := range []struct {
				name string
				do   func(m mmesh.ModelRuntimeClient) (proto.Message, error)
			}{
				{"runtimeStatus", func(m mmesh.ModelRuntimeClient) (proto.Message, error) {
					return m.RuntimeStatus(t.Context(), &mmesh.RuntimeStatusRequest{})
				}},
				{"a load", load("a", "sim:?size=20&concurrency=2")},
				{"a load again", load("a", "sim:?size=20&concurrency=2")},
				{"a load without a size", load("b", "sim:?sizing=1ms&size=30")},
				{"modelSize", func(m mmesh.ModelRuntimeClient) (proto.Message, error) {
					return m.ModelSize(t.Context(), &mmesh.ModelSizeRequest{ModelId: "b"})
				}},
				{"predictModelSize", func(m mmesh.ModelRuntimeClient) (proto.Message, error) {
					q := &mmesh.PredictModelSizeRequest{ModelId: "c", ModelPath: "sim:?predict=40"}
					return m.PredictModelSize(t.Context(), q)
				}},
				{"a refused load", load("d", "sim:?fail=FAILED_PRECONDITION:no%20such%20file")},
				{"an invalid load", load("e", "sim:?size=x")},
				{"a failed load", load("f", "sim:?fail=INTERNAL:disk%20broken")},
				{"a load that is too large", load("g", "sim:?size=2Gi")},
				{"an unload", unload("a")},
				{"an unload of an unknown model", unload("nobody")},
			} {
				var answers [2]proto.Message
				var errs [2]error
				for i, m := range all {
					answers[i], errs[i] = c.do(m)
				}
				if diff := cmp.Diff(answers[0], answers[1], protocmp.Transform()); diff != "" {
					t.Errorf("%s: the answer (-direct +agent):\n%s", c.name, diff)
				}
				want, got := status.Convert(errs[0]), status.Convert(errs[1])
				if want.Code() != got.Code() || want.Message() != got.Message() {
					t.Errorf("%s: %v, want %v", c.name, got, want)
				}
			}
		})
	}
}

func load(id, path string) func(m mmesh.ModelRuntimeClient) (proto.Message, error) {
	return func(m mmesh.ModelRuntimeClient) (proto.Message, error) {
		return m.LoadModel(context.Background(), &mmesh.LoadModelRequest{ModelId: id, ModelType: "type", ModelPath: path, ModelKey: "key"})
	}
}

func unload(id string) func(m mmesh.ModelRuntimeClient) (proto.Message, error) {
	return func(m mmesh.ModelRuntimeClient) (proto.Message, error) {
		return m.UnloadModel(context.Background(), &mmesh.UnloadModelRequest{ModelId: id})
	}
}

// strange is a runtime that answers with fields that the agent does not know, and keeps the last
// request.
type strange struct {
	mmesh.UnimplementedModelRuntimeServer
	asked chan *mmesh.LoadModelRequest
}

var unknownField = []byte{0xfa, 0x07, 3, 'n', 'e', 'w'} // field 127

func (s strange) RuntimeStatus(context.Context, *mmesh.RuntimeStatusRequest) (*mmesh.RuntimeStatusResponse, error) {
	r := &mmesh.RuntimeStatusResponse{Status: mmesh.RuntimeStatusResponse_READY, AllowAnyMethod: true}
	r.ProtoReflect().SetUnknown(unknownField)
	return r, nil
}

func (s strange) LoadModel(_ context.Context, q *mmesh.LoadModelRequest) (*mmesh.LoadModelResponse, error) {
	s.asked <- q
	r := &mmesh.LoadModelResponse{MaxConcurrency: 7}
	r.ProtoReflect().SetUnknown(unknownField)
	return r, nil
}

func (s strange) UnloadModel(context.Context, *mmesh.UnloadModelRequest) (*mmesh.UnloadModelResponse, error) {
	return nil, status.Error(codes.NotFound, "no such model")
}

// Fields that the agent does not know pass in both directions. The path and the key become local,
// and an unload of an unknown model succeeds.
func TestUnknownFieldsPass(t *testing.T) {
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	own := strange{asked: make(chan *mmesh.LoadModelRequest, 1)}
	server := grpc.NewServer()
	mmesh.RegisterModelRuntimeServer(server, own)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	agent := newAgent(t, Config{}, func() Engine { return runtimeAt(t, l.Addr().String()) })
	client := calls(t, agent.address)
	for range 2 { // the second answer is the stored one
		ready, err := client.RuntimeStatus(t.Context(), &mmesh.RuntimeStatusRequest{})
		if err != nil || string(ready.ProtoReflect().GetUnknown()) != string(unknownField) || !ready.GetAllowAnyMethod() {
			t.Errorf("runtimeStatus answers %v, %v", ready, err)
		}
	}
	q := &mmesh.LoadModelRequest{ModelId: "m", ModelType: "type", ModelPath: "fetch:size=1", ModelKey: "key"}
	q.ProtoReflect().SetUnknown(unknownField)
	answer, err := client.LoadModel(t.Context(), q)
	if err != nil || string(answer.ProtoReflect().GetUnknown()) != string(unknownField) || answer.GetMaxConcurrency() != 7 {
		t.Errorf("loadModel answers %v, %v", answer, err)
	}
	q.ModelPath, q.ModelKey = "sim:?size=1", "local key"
	if diff := cmp.Diff(q, <-own.asked, protocmp.Transform()); diff != "" {
		t.Errorf("the runtime gets (-want +got):\n%s", diff)
	}
	if _, err := client.UnloadModel(t.Context(), &mmesh.UnloadModelRequest{ModelId: "m"}); err != nil {
		t.Errorf("an unload of a model that the runtime does not know: %v", err)
	}
}
