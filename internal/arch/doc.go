// Package arch holds the layout of the program as a test: which package may import
// which, which module is used in which package, and a few rules about files. It has
// no code of its own; a new package or module starts with a line in its table.
package arch
