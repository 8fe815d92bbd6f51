// Package mmesh is ModelMesh's two interfaces on the wire: ModelRuntime, which runtimes serve and
// control calls, and ModelMesh, which control serves. The protocol files in this folder are its
// source.
package mmesh
