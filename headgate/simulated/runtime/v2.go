package runtime

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/headgate/headgate/api/inference"
	"github.com/headgate/headgate/api/mmesh"
	"github.com/headgate/headgate/headgate/simulated/llm"
)

// EchoMethod is a method that belongs to no API. It answers each message
// (google.protobuf.BytesValue) with the same message. Only headers name the model of a call.
const EchoMethod = "simulated.Echo/Run"

// methods are the permitted gRPC methods. Each has the field path of the model id in its messages.
var methods = map[string]*mmesh.RuntimeStatusResponse_MethodInfo{
	EchoMethod: {},
	"inference.GRPCInferenceService/ModelInfer":       {IdInjectionPath: []uint32{1}},
	"inference.GRPCInferenceService/ModelStreamInfer": {IdInjectionPath: []uint32{1}},
	"inference.GRPCInferenceService/ModelMetadata":    {IdInjectionPath: []uint32{1}},
}

// v2 is KServe's inference service for loaded models. It returns the inputs as outputs. It requires
// that the message and both forms of the header name the same model.
type v2 struct {
	inference.UnimplementedGRPCInferenceServiceServer
	runtime *Runtime
}

// calls returns the gRPC server for KServe V2.
func (r *Runtime) calls() *grpc.Server {
	server := grpc.NewServer(grpc.MaxRecvMsgSize(64<<20), grpc.MaxConcurrentStreams(1<<20))
	inference.RegisterGRPCInferenceServiceServer(server, v2{runtime: r})
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "simulated.Echo", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{{
		StreamName: "Run", Handler: func(_ any, stream grpc.ServerStream) error { return r.echo(stream) }, ServerStreams: true,
		ClientStreams: true,
	}}}, r)
	return server
}

// echo serves [EchoMethod].
func (r *Runtime) echo(stream grpc.ServerStream) error {
	md, _ := metadata.FromIncomingContext(stream.Context())
	model := strings.Join(md.Get("mm-model-id-bin"), " ") // gRPC has already decoded the value
	if err := (v2{runtime: r}).of(stream.Context(), model); err != nil {
		return err
	}
	for {
		var m wrapperspb.BytesValue
		err := stream.RecvMsg(&m)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.compute(stream.Context(), model); err != nil {
			return err
		}
		if err := stream.SendMsg(&m); err != nil {
			return err
		}
	}
}

// of checks that the headers of a call name the same model as its message, and that this model is
// loaded.
func (v v2) of(ctx context.Context, model string) error {
	if err := named(ctx, model); err != nil {
		return err
	}
	if !v.runtime.Loaded(model) {
		if is := v.runtime.config.Unknown; is != nil {
			return status.Error(is.Code(), strings.ReplaceAll(is.Message(), "%s", model))
		}
		return status.Errorf(codes.NotFound, "Request for unknown model: '%s' is not found", model) // the message of Triton
	}
	return nil
}

// named checks that the headers of a call name the model.
func named(ctx context.Context, model string) error {
	md, _ := metadata.FromIncomingContext(ctx)
	binary := md.Get("mm-model-id-bin") // gRPC has already decoded the values
	if len(binary) != 1 || binary[0] != model {
		return status.Errorf(codes.Internal, "the message is for %q and mm-model-id-bin for %q", model, binary)
	}
	if plain := md.Get("mm-model-id"); len(plain) > 1 || len(plain) == 1 && plain[0] != model {
		return status.Errorf(codes.Internal, "the message is for %q and mm-model-id for %q", model, plain)
	}
	for _, gone := range []string{"mm-vmodel-id", "mm-vmodel-id-bin", "tas-model-id", "mm-balanced"} {
		if len(md.Get(gone)) > 0 {
			return status.Errorf(codes.Internal, "the header %s is for the gateway", gone)
		}
	}
	return nil
}

// ModelInfer returns the inputs as outputs.
func (v v2) ModelInfer(ctx context.Context, q *inference.ModelInferRequest) (*inference.ModelInferResponse, error) {
	if err := v.of(ctx, q.GetModelName()); err != nil {
		return nil, err
	}
	if err := v.runtime.compute(ctx, q.GetModelName()); err != nil {
		return nil, err
	}
	return echo(q), nil
}

// ModelStreamInfer answers each message of the stream in order.
func (v v2) ModelStreamInfer(stream grpc.BidiStreamingServer[inference.ModelInferRequest, inference.ModelStreamInferResponse]) error {
	for {
		q, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := v.of(stream.Context(), q.GetModelName()); err != nil {
			return err
		}
		if err := v.runtime.compute(stream.Context(), q.GetModelName()); err != nil {
			return err
		}
		if err := stream.Send(&inference.ModelStreamInferResponse{InferResponse: echo(q)}); err != nil {
			return err
		}
	}
}

// ModelMetadata describes the inputs and outputs of a model.
func (v v2) ModelMetadata(ctx context.Context, q *inference.ModelMetadataRequest) (*inference.ModelMetadataResponse, error) {
	if err := v.of(ctx, q.GetName()); err != nil {
		return nil, err
	}
	tensor := []*inference.ModelMetadataResponse_TensorMetadata{{Name: "any", Datatype: "FP32", Shape: []int64{-1}}}
	return &inference.ModelMetadataResponse{
		Name: q.GetName(), Versions: []string{"1"}, Platform: "simulated", Inputs: tensor,
		Outputs: tensor,
	}, nil
}

// compute waits for the inference time of a model. It fails if the model has reached its
// concurrency limit.
func (r *Runtime) compute(ctx context.Context, model string) error {
	r.mu.Lock()
	m := r.models[model]
	switch {
	case m == nil:
		r.mu.Unlock()
		return nil
	case m.refusal != codes.OK:
		r.mu.Unlock()
		r.config.Events.Write(llm.Event{Event: "refused", Model: model})
		return status.Error(m.refusal, m.refusing)
	case m.concurrency > 0 && m.running >= m.concurrency:
		r.mu.Unlock()
		r.config.Events.Write(llm.Event{Event: "crowded", Model: model})
		return status.Errorf(codes.ResourceExhausted, "model %s takes %d requests at once", model, m.concurrency)
	}
	m.running++
	takes := m.infer
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		m.running--
	}()
	if takes == 0 {
		return nil
	}
	timer := time.NewTimer(takes)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// echo returns the inputs of a request as outputs.
func echo(q *inference.ModelInferRequest) *inference.ModelInferResponse {
	a := &inference.ModelInferResponse{
		ModelName: q.GetModelName(), ModelVersion: "1", Id: q.GetId(),
		RawOutputContents: q.GetRawInputContents(),
	}
	for _, in := range q.GetInputs() {
		a.Outputs = append(a.Outputs, &inference.ModelInferResponse_InferOutputTensor{
			Name: in.GetName(), Datatype: in.GetDatatype(), Shape: in.GetShape(), Parameters: in.GetParameters(),
			Contents: in.GetContents(),
		})
	}
	return a
}

// infer serves V2 inference over REST. describe serves the metadata of a model.
func (r *Runtime) infer(w http.ResponseWriter, q *http.Request) {
	model := q.PathValue("model")
	if !r.restNamed(w, q, model) {
		return
	}
	var request struct {
		ID     string            `json:"id,omitempty"`
		Inputs []json.RawMessage `json:"inputs"`
	}
	if err := json.NewDecoder(q.Body).Decode(&request); err != nil || request.Inputs == nil {
		say(w, http.StatusBadRequest, fields{"error": "the body has no inputs"})
		return
	}
	switch err := r.compute(q.Context(), model); {
	case status.Code(err) == codes.ResourceExhausted:
		say(w, http.StatusTooManyRequests, fields{"error": status.Convert(err).Message()})
		return
	case err != nil:
		return // the client has disconnected
	}
	say(w, http.StatusOK, fields{"model_name": model, "model_version": "1", "id": request.ID, "outputs": request.Inputs})
}

func (r *Runtime) describe(w http.ResponseWriter, q *http.Request) {
	if model := q.PathValue("model"); r.restNamed(w, q, model) {
		tensor := []fields{{"name": "any", "datatype": "FP32", "shape": []int{-1}}}
		say(w, http.StatusOK, fields{
			"name": model, "versions": []string{"1"}, "platform": "simulated", "inputs": tensor,
			"outputs": tensor,
		})
	}
}

// restNamed reports whether the headers of a request name the model of its path. If they do not, it
// answers with an error.
func (r *Runtime) restNamed(w http.ResponseWriter, q *http.Request, model string) bool {
	id, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(q.Header.Get("Mm-Model-Id-Bin"), "="))
	switch {
	case err != nil || string(id) != model:
		say(w, http.StatusInternalServerError, fields{"error": "the path and mm-model-id-bin are for two models"})
	case !r.Loaded(model):
		say(w, http.StatusNotFound, fields{"error": "Request for unknown model: '" + model + "' is not found"})
	default:
		return true
	}
	return false
}
