package mmesh_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/headgate/headgate/api/mmesh"
)

// tables describe the interfaces of ModelMesh 0.12 as its runtimes and clients use them. On the
// wire only the names of the package, services and methods matter, and the numbers and types of
// fields and enums. Names of fields and messages matter to grpcurl and JSON.
var tables = []struct {
	file  protoreflect.FileDescriptor
	table string
}{
	{mmesh.File_mmesh_model_runtime_proto, `
package mmesh
service ModelRuntime
  loadModel(LoadModelRequest) LoadModelResponse
  unloadModel(UnloadModelRequest) UnloadModelResponse
  predictModelSize(PredictModelSizeRequest) PredictModelSizeResponse
  modelSize(ModelSizeRequest) ModelSizeResponse
  runtimeStatus(RuntimeStatusRequest) RuntimeStatusResponse
message LoadModelRequest
  1 string modelId
  2 string modelType
  3 string modelPath
  4 string modelKey
message LoadModelResponse
  1 uint64 sizeInBytes
  2 uint32 maxConcurrency
message UnloadModelRequest
  1 string modelId
message UnloadModelResponse
message PredictModelSizeRequest
  1 string modelId
  2 string modelType
  3 string modelPath
  4 string modelKey
message PredictModelSizeResponse
  1 uint64 sizeInBytes
message ModelSizeRequest
  1 string modelId
message ModelSizeResponse
  1 uint64 sizeInBytes
message RuntimeStatusRequest
message RuntimeStatusResponse
  1 RuntimeStatusResponse.Status status
  2 uint64 capacityInBytes
  3 uint32 maxLoadingConcurrency
  4 uint32 modelLoadingTimeoutMs
  5 uint64 defaultModelSizeInBytes
  6 string runtimeVersion
  7 uint64 numericRuntimeVersion
  8 map<string,RuntimeStatusResponse.MethodInfo> methodInfos
  9 bool limitModelConcurrency
  10 bool allowAnyMethod
enum RuntimeStatusResponse.Status STARTING=0 READY=1 FAILING=2
message RuntimeStatusResponse.MethodInfo
  1 repeated uint32 idInjectionPath
`},
	{mmesh.File_mmesh_model_mesh_proto, `
package mmesh
service ModelMesh
  registerModel(RegisterModelRequest) ModelStatusInfo
  unregisterModel(UnregisterModelRequest) UnregisterModelResponse
  getModelStatus(GetStatusRequest) ModelStatusInfo
  ensureLoaded(EnsureLoadedRequest) ModelStatusInfo
  setVModel(SetVModelRequest) VModelStatusInfo
  deleteVModel(DeleteVModelRequest) DeleteVModelResponse
  getVModelStatus(GetVModelStatusRequest) VModelStatusInfo
message ModelInfo
  1 string type
  2 string path
  3 string key
message RegisterModelRequest
  1 string modelId
  2 ModelInfo modelInfo
  3 bool loadNow
  4 bool sync
  5 uint64 lastUsedTime
message UnregisterModelRequest
  1 string modelId
message UnregisterModelResponse
message GetStatusRequest
  1 string modelId
message EnsureLoadedRequest
  1 string modelId
  2 uint64 lastUsedTime
  3 reserved
  4 bool sync
message ModelStatusInfo
  1 ModelStatusInfo.ModelStatus status
  2 repeated string errors
  3 repeated ModelStatusInfo.ModelCopyInfo modelCopyInfos
enum ModelStatusInfo.ModelStatus NOT_FOUND=0 NOT_LOADED=1 LOADING=2 LOADED=3 LOADING_FAILED=4 UNKNOWN=5
message ModelStatusInfo.ModelCopyInfo
  1 string location
  2 ModelStatusInfo.ModelStatus copyStatus
  3 uint64 time
message SetVModelRequest
  1 string vModelId
  2 string targetModelId
  3 bool updateOnly
  4 ModelInfo modelInfo
  5 bool autoDeleteTargetModel
  6 bool loadNow
  7 bool force
  8 bool sync
  9 string expectedTargetModelId
  10 string owner
message DeleteVModelRequest
  1 string vModelId
  2 string owner
message DeleteVModelResponse
message GetVModelStatusRequest
  1 string vModelId
  2 string owner
message VModelStatusInfo
  1 VModelStatusInfo.VModelStatus status
  2 string activeModelId
  3 string targetModelId
  4 ModelStatusInfo activeModelStatus
  5 ModelStatusInfo targetModelStatus
  6 string owner
enum VModelStatusInfo.VModelStatus NOT_FOUND=0 DEFINED=1 TRANSITIONING=2 TRANSITION_FAILED=3 UNKNOWN=5
`},
}

func TestInterfacesAreModelMeshs(t *testing.T) {
	for _, c := range tables {
		if c.file.Syntax() != protoreflect.Proto3 {
			t.Errorf("%s is %v", c.file.Path(), c.file.Syntax())
		}
		got, want := describe(c.file), strings.Split(strings.TrimSpace(c.table), "\n")
		// The order of messages does not matter.
		if diff := cmp.Diff(blocks(want), blocks(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.file.Path(), diff)
		}
	}
}

// blocks returns the parts of a description by their first lines.
func blocks(lines []string) map[string][]string {
	all := map[string][]string{}
	head := ""
	for _, l := range lines {
		if !strings.HasPrefix(l, " ") {
			head = l
			all[head] = nil
			continue
		}
		all[head] = append(all[head], l)
	}
	return all
}

// describe writes a file's descriptor in the format of the tables.
func describe(file protoreflect.FileDescriptor) []string {
	lines := []string{"package " + string(file.Package())}
	for i := range file.Services().Len() {
		service := file.Services().Get(i)
		lines = append(lines, "service "+string(service.Name()))
		for j := range service.Methods().Len() {
			m := service.Methods().Get(j)
			line := fmt.Sprintf("  %s(%s) %s", m.Name(), local(m.Input()), local(m.Output()))
			if m.IsStreamingClient() || m.IsStreamingServer() {
				line += " streaming"
			}
			lines = append(lines, line)
		}
	}
	return append(lines, describeTypes(file.Messages(), file.Enums())...)
}

func describeTypes(messages protoreflect.MessageDescriptors, enums protoreflect.EnumDescriptors) (lines []string) {
	for i := range enums.Len() {
		e := enums.Get(i)
		words := []string{"enum", local(e)}
		for j := range e.Values().Len() {
			words = append(words, fmt.Sprintf("%s=%d", e.Values().Get(j).Name(), e.Values().Get(j).Number()))
		}
		lines = append(lines, strings.Join(words, " "))
	}
	for i := range messages.Len() {
		m := messages.Get(i)
		if m.IsMapEntry() {
			continue
		}
		lines = append(lines, "message "+local(m))
		var fields []protoreflect.FieldNumber
		for j := range m.Fields().Len() {
			fields = append(fields, m.Fields().Get(j).Number())
		}
		for j := range m.ReservedRanges().Len() {
			for n := m.ReservedRanges().Get(j)[0]; n < m.ReservedRanges().Get(j)[1]; n++ {
				fields = append(fields, n)
			}
		}
		slices.Sort(fields)
		for _, n := range fields {
			f := m.Fields().ByNumber(n)
			if f == nil {
				lines = append(lines, fmt.Sprintf("  %d reserved", n))
				continue
			}
			lines = append(lines, fmt.Sprintf("  %d %s %s", n, typeOf(f), f.Name()))
		}
		lines = append(lines, describeTypes(m.Messages(), m.Enums())...)
	}
	return lines
}

func typeOf(f protoreflect.FieldDescriptor) string {
	if f.IsMap() {
		return fmt.Sprintf("map<%s,%s>", typeOf(f.MapKey()), typeOf(f.MapValue()))
	}
	name := f.Kind().String()
	switch f.Kind() {
	case protoreflect.MessageKind:
		name = local(f.Message())
	case protoreflect.EnumKind:
		name = local(f.Enum())
	}
	switch {
	case f.IsList():
		return "repeated " + name
	case f.HasOptionalKeyword(), f.ContainingOneof() != nil:
		return "optional " + name
	}
	return name
}

// local returns a name without its package.
func local(d protoreflect.Descriptor) string {
	return strings.TrimPrefix(string(d.FullName()), string(d.ParentFile().Package())+".")
}
