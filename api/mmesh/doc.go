// Package mmesh contains ModelMesh's two gRPC interfaces: ModelRuntime, which runtimes serve and
// control calls, and ModelMesh, which control serves. It is generated from the protocol files in
// this folder.
package mmesh
